"""A task whose output is a pydantic model, and one that is given to it as context."""

from crewai import LLM, Agent, Crew, Task
from pydantic import BaseModel


class Post(BaseModel):
    title: str
    text: str


llm = LLM(model="openai/gpt-4o-mini")
thinker = Agent(role="thinker", goal="Have ideas.", backstory="Bold.", llm=llm)
blogger = Agent(role="blogger", goal="Write posts.", backstory="Quick.", llm=llm)
idea = Task(description="An idea for a post on {topic}.", expected_output="one sentence", agent=thinker)
post = Task(
    description="Write it.", expected_output="a post", agent=blogger, context=[idea], output_pydantic=Post
)
done = Crew(agents=[thinker, blogger], tasks=[idea, post]).kickoff(inputs={"topic": "tea"})
print(done.pydantic)
