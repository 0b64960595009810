"""A manager who delegates to two agents."""

from crewai import LLM, Agent, Crew, Process, Task

llm = LLM(model="openai/gpt-4o-mini")
researcher = Agent(role="researcher", goal="Find facts.", backstory="Curious.", llm=llm)
writer = Agent(role="writer", goal="Write texts.", backstory="Terse.", llm=llm)
crew = Crew(
    agents=[researcher, writer],
    tasks=[Task(description="A note on rivers.", expected_output="a note")],
    process=Process.hierarchical,
    manager_llm=llm,
)
print(crew.kickoff().raw)
