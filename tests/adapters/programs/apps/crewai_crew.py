"""A researcher with a tool and a writer, one task each."""

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool("get_weather")
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"sunny in {city}"


llm = LLM(model="openai/gpt-4o-mini")
researcher = Agent(role="researcher", goal="Find out.", backstory="Curious.", llm=llm, tools=[get_weather])
writer = Agent(role="writer", goal="Write it down.", backstory="Terse.", llm=llm)
crew = Crew(
    agents=[researcher, writer],
    tasks=[
        Task(description="The weather in Paris?", expected_output="a word", agent=researcher),
        Task(description="Write a note of it.", expected_output="a sentence", agent=writer),
    ],
)
print(crew.kickoff().raw)
