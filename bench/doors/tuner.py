"""A program for AgentScope's tuner, in the shape of its tutorial.

    python bench/doors/tuner.py DATASET POLICY FOLDER

One line of it differs: the import of ``tune``. Its last settings are ours: where and how the run is made.
"""

import sys

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.memory import InMemoryMemory
from agentscope.message import Msg, TextBlock
from agentscope.model import ChatModelBase
from agentscope.tool import Toolkit, ToolResponse
from agentscope.tuner import AlgorithmConfig, DatasetConfig, JudgeOutput, TunerModelConfig, WorkflowOutput

from agl_agentscope.tuner import tune  # in place of agentscope.tuner's


async def calculate(expression: str) -> ToolResponse:
    """Calculate the value of an arithmetic expression.

    Args:
        expression (str): The expression.
    """
    value = str(eval(expression, {"__builtins__": {}}))
    return ToolResponse(content=[TextBlock(type="text", text=value)])


async def run_react_agent(
    task: dict, model: ChatModelBase, auxiliary_models: dict[str, ChatModelBase]
) -> WorkflowOutput:
    """Answer a word problem."""
    assert not auxiliary_models
    toolkit = Toolkit()
    toolkit.register_tool_function(calculate)
    agent = ReActAgent(
        name="solver",
        sys_prompt="Use the calculator.",
        model=model,
        toolkit=toolkit,
        memory=InMemoryMemory(),
        formatter=OpenAIChatFormatter(),
        max_iters=3,
    )
    agent.set_console_output_enabled(False)
    answer = await agent(Msg("user", task["question"], role="user"))
    return WorkflowOutput(response=answer, metrics={"length": float(len(answer.get_text_content() or ""))})


async def judge_answer(task: dict, response: Msg) -> JudgeOutput:
    """Is the number right?"""
    said = response.get_text_content() or ""
    return JudgeOutput(
        reward=float(f" {task['result']} " in said), metrics={"answered": float("ANSWER" in said)}
    )


if __name__ == "__main__":
    dataset, policy, folder = sys.argv[1:]
    tune(
        workflow_func=run_react_agent,
        judge_func=judge_answer,
        train_dataset=DatasetConfig(path=dataset, split="train", total_steps=3),
        model=TunerModelConfig(model_path=policy, max_model_len=1024),
        algorithm=AlgorithmConfig(group_size=4, batch_size=4, learning_rate=3e-4),
        output=folder,
        evaluate_sampled=False,
        concurrency=8,
        timeout_seconds=240,
        options={"threads": 1, "engine_threads": 1},
    )
