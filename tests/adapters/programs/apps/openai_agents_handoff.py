"""A triage agent that hands over to a forecaster with a tool."""

from agents import Agent, Runner, function_tool


@function_tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"The weather in {city} is sunny"


forecaster = Agent(name="forecaster", instructions="You forecast.", model="gpt-4o-mini", tools=[get_weather])
triage = Agent(
    name="triage", instructions="Hand over to who knows.", model="gpt-4o-mini", handoffs=[forecaster]
)
result = Runner.run_sync(triage, "What is the weather in Paris?")
print(result.final_output)
