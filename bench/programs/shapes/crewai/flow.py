"""A flow: a plain call of the model, a router, and a crew on one of the routes."""

from crewai import LLM, Agent, Crew, Task
from crewai.flow.flow import Flow, listen, router, start
from pydantic import BaseModel

llm = LLM(model="openai/gpt-4o-mini")


class State(BaseModel):
    city: str = ""
    good: bool = False


class Trip(Flow[State]):
    @start()
    def choose(self) -> None:
        self.state.city = str(llm.call("Name a city, and nothing else."))

    @router(choose)
    def check(self) -> str:
        return "known" if self.state.city else "unknown"

    @listen("known")
    def describe(self) -> str:
        guide = Agent(role="guide", goal="Describe cities.", backstory="Travelled.", llm=llm)
        task = Task(description=f"Describe {self.state.city}.", expected_output="a sentence", agent=guide)
        return Crew(agents=[guide], tasks=[task]).kickoff().raw

    @listen("unknown")
    def give_up(self) -> str:
        return "nowhere"


print(Trip().kickoff())
