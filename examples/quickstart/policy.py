"""Build the policy the quickstarts train: ``python -m quickstart.policy --seed 1`` (minutes on one core).

calc_x's network and problems, taught in two wordings: the one that every framework can send, and CrewAI's,
which writes prompts of its own around a task. Its chat template names a tool by name and parameters only,
because frameworks agree on nothing else of a tool's schema.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from agl_local.policy.folder import save_policy
from calc_x.evaluate import table
from calc_x.grading import ANSWER_FORM
from calc_x.teacher import Wording
from calc_x.tokenizer import SCAFFOLD, build_tokenizer
from calc_x.warmstart import STEPS, build

HERE = Path(__file__).resolve().parent
SYSTEM = "Use the calculator."
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "calculate",
            "description": "Calculate the value of an arithmetic expression.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    }
]
PLAIN = Wording(SYSTEM, TOOLS, again=TOOLS)
CREW = Wording(
    f"You are solver. {SYSTEM}\nYour personal goal is: Be right.",
    TOOLS,
    before="\nCurrent Task: ",
    after=f"\n\nThis is the expected criteria for your final answer: {ANSWER_FORM}\n"
    "you MUST return the actual complete content as the final answer, not a summary.",
    again=TOOLS,
)
"""CrewAI 1.15's prompt for role ``solver``, goal ``Be right.`` and ``SYSTEM`` as the backstory."""
WORDINGS = (PLAIN, CREW)
LINES = (
    SYSTEM,
    CREW.system,
    "\nTools, called as JSON within <tool_call></tool_call>:\ncalculate(expression)",
    PLAIN.after,
    CREW.before,
    CREW.after,
)
"""The fixed lines of these prompts, each one token (see :mod:`calc_x.tokenizer`)."""
TURNS = ("system\n", "user\n", "assistant\n")


def scaffold() -> tuple[str, ...]:
    """The lines that are one token each: these prompts', and calc_x's around calls, results and answers."""
    shared = SCAFFOLD[SCAFFOLD.index("<tool_call>\n") :]
    return (*TURNS, *LINES, *shared)


def main() -> None:
    """Build, save, evaluate, and write the card with what was measured."""
    parser = argparse.ArgumentParser(prog="python -m quickstart.policy", description="Build the policy.")
    parser.add_argument("--out", type=Path, default=HERE / "policy")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    begin = time.process_time()
    tokenizer = build_tokenizer(scaffold(), HERE / "template.jinja")
    policy = build(arguments.seed, arguments.steps, tokenizer=tokenizer, wordings=WORDINGS)
    seconds = time.process_time() - begin
    save_policy(policy, arguments.out)
    plain, crew = (table(policy, wording=wording) for wording in WORDINGS)
    card = (
        (HERE / "card.md")
        .read_text(encoding="utf-8")
        .format(
            parameters=sum(parameter.numel() for parameter in policy.model.parameters()),
            plain=plain,
            crew=crew,
            seed=arguments.seed,
            steps=arguments.steps,
            seconds=seconds,
        )
    )
    (arguments.out / "README.md").write_text(card, encoding="utf-8")
    print(plain, crew, sep="\n\n")


if __name__ == "__main__":
    main()
