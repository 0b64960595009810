"""An agent that writes, runs, checks and corrects SQL, in the shape of a program for Agent Lightning 0.3.

python sql_agent.py             tries the agent on the questions of $VERL_SPIDER_DATA_DIR/dev.parquet
python sql_agent.py train       trains it, from the policy in $POLICY, for one step
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import sys
import tempfile
from typing import Any, TypedDict, cast

import pandas as pd
from langchain.chat_models import init_chat_model
from langgraph.graph import END, START, StateGraph

import agentlightning as agl

logger = agl.configure_logger(name=__name__)
WRITE = "Write one SQLite query that answers the question, in a fenced block.\nSchema:\n{schema}"
CHECK = "Check the query. End with THE QUERY IS CORRECT. or THE QUERY IS INCORRECT.\nSchema:\n{schema}"
REWRITE = "Correct the query, in a fenced block.\nSchema:\n{schema}"


class State(TypedDict, total=False):
    question: str
    query: str
    rows: str
    feedback: str
    turns: int


class SQLAgent:
    def __init__(self, file: str, endpoint: str, model: str, temperature: float, max_turns: int) -> None:
        self.file, self.max_turns = file, max_turns
        self.llm = init_chat_model(
            model,
            model_provider="openai",
            openai_api_base=endpoint,
            openai_api_key=os.environ.get("OPENAI_API_KEY", "dummy"),
            temperature=temperature,
            max_retries=0,
            max_tokens=128,
        )

    def schema(self) -> str:
        with sqlite3.connect(self.file) as database:
            return "\n".join(row[0] for row in database.execute("SELECT sql FROM sqlite_master") if row[0])[
                :400
            ]

    def ask(self, role: str, text: str) -> str:
        said = self.llm.invoke([("system", role.format(schema=self.schema())), ("user", text)])
        return str(said.content)

    def write_query(self, state: State) -> State:
        return {"query": fenced(self.ask(WRITE, f"Question: {state['question']}")), "turns": 1}

    def execute_query(self, state: State) -> State:
        try:
            with sqlite3.connect(self.file) as database:
                return {"rows": str(database.execute(state["query"]).fetchmany(3))}
        except (sqlite3.Error, sqlite3.Warning) as error:
            return {"rows": f"error: {error}"}

    def check_query(self, state: State) -> State:
        text = f"Question: {state['question']}\nQuery: {state['query']}\nResult: {state['rows']}"
        return {"feedback": self.ask(CHECK, text)}

    def rewrite_query(self, state: State) -> State:
        text = f"Question: {state['question']}\nQuery: {state['query']}\nFeedback: {state['feedback']}"
        return {"query": fenced(self.ask(REWRITE, text)), "turns": state["turns"] + 1}

    def should_continue(self, state: State) -> str:
        right = "THE QUERY IS CORRECT" in state["feedback"]
        return END if right or state["turns"] >= self.max_turns else "rewrite_query"

    def graph(self) -> Any:
        builder = StateGraph(State)
        for node in (self.write_query, self.execute_query, self.check_query, self.rewrite_query):
            builder.add_node(node.__name__, node)
        builder.add_edge(START, "write_query")
        builder.add_edge("write_query", "execute_query")
        builder.add_edge("execute_query", "check_query")
        builder.add_conditional_edges("check_query", self.should_continue, [END, "rewrite_query"])
        builder.add_edge("rewrite_query", "execute_query")
        return builder.compile()


def fenced(text: str) -> str:
    blocks = re.findall(r"```\w*\n(.*?)\n```", text, re.DOTALL)
    return blocks[-1].strip() if blocks else text


class LitSQLAgent(agl.LitAgent[dict[str, Any]]):
    def __init__(
        self,
        trained_agents: str | None = r"write",
        val_temperature: float | None = None,
        max_turns: int = 3,
    ) -> None:
        super().__init__(trained_agents=trained_agents)
        self.val_temperature = val_temperature
        self.spider_dir = os.environ.get("VERL_SPIDER_DATA_DIR", "data")
        self.max_turns = max_turns

    def rollout(
        self, task: dict[str, Any], resources: agl.NamedResources, rollout: agl.Rollout
    ) -> float | None:
        llm = cast(agl.LLM, resources["main_llm"])
        rollout_id, attempt = rollout.rollout_id, rollout.attempt
        folder = "database" if rollout.mode == "train" else "test_database"
        original = os.path.join(self.spider_dir, folder, task["db_id"], task["db_id"] + ".sqlite")
        if rollout.mode == "train" or self.val_temperature is None:
            temperature = llm.sampling_parameters["temperature"]
        else:
            temperature = self.val_temperature
        with tempfile.TemporaryDirectory() as place:
            file = shutil.copyfile(original, os.path.join(place, "copy.sqlite"))
            endpoint = llm.get_base_url(rollout_id, attempt.attempt_id)
            agent = SQLAgent(file, endpoint, llm.model, temperature, self.max_turns).graph()
            handler = self.tracer.get_langchain_handler()
            try:
                result = agent.invoke(
                    {"question": task["question"]},
                    {"callbacks": [handler] if handler else [], "recursion_limit": 100},
                )
            except Exception as error:
                logger.exception(f"[Rollout {rollout_id}] the agent failed: {error}")
                return None
            logger.info(f"[Rollout {rollout_id}] {result['query']} by {type(self.trainer).__name__}")
            return float(rows(file, result["query"]) == rows(file, task["query"]))


def rows(file: str, query: str) -> Any:
    try:
        with sqlite3.connect(file) as database:
            return sorted(map(str, database.execute(query).fetchall()))
    except (sqlite3.Error, sqlite3.Warning) as error:
        return str(error)


def questions(count: int) -> list[dict[str, Any]]:
    frame = pd.read_parquet(os.path.join(os.environ.get("VERL_SPIDER_DATA_DIR", "data"), "dev.parquet"))
    return cast(list[dict[str, Any]], frame.head(count).to_dict(orient="records"))


def debug() -> None:
    endpoint = agl.LLM(
        endpoint=os.environ["OPENAI_API_BASE"], model="gpt-4.1-nano", sampling_parameters={"temperature": 0.7}
    )
    agl.Trainer(n_workers=1, initial_resources={"main_llm": endpoint}).dev(LitSQLAgent(), questions(4))


def train() -> None:
    trainer = agl.Trainer(
        n_runners=4,
        algorithm="grpo",
        adapter={"agent_match": "write"},
        policy=os.environ["POLICY"],
        recipe={"group_size": 2},
        steps=1,
        batch_size=2,
        evaluate_every=0,
    )
    trainer.fit(LitSQLAgent(trained_agents=None), questions(4))


if __name__ == "__main__":
    train() if "train" in sys.argv else debug()
