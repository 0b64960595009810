"""One prompt search in a process of its own: ``python search.py TASK FOLDER CRITIC [MODEL] [--resume]``.

``TASK``: ``room_selector``, whose agent asks the endpoint MODEL, or ``question_kinds``, whose agent asks
SmolLM2-135M, which this process serves. CRITIC: the endpoint of critic and editor. The last line of stdout is
the run's summary as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import agentlightning as agl

MODEL = "smollm2"
RUN = "search"


def room_selector(args: argparse.Namespace, critic: agl.LLM) -> tuple[Any, ...]:
    """Return trainer fields, search, agent and tasks of the meeting rooms."""
    from room_selector.agent import FIRST, agent
    from room_selector.rooms import load

    search = agl.APO(
        critic=critic,
        prompts={"prompt_template": FIRST},
        beam_width=2,
        branch_factor=2,
        beam_rounds=8,
        gradient_batch_size=4,
        val_batch_size=None,
        budget={"calls": 3000},
    )
    fields = {"policy": {"agent": agl.LLM(endpoint=args.model, model="scripted")}, "concurrency": 8}
    return fields, search, agent, load("train"), load("val")


def question_kinds(args: argparse.Namespace, critic: agl.LLM) -> tuple[Any, ...]:
    """Return trainer fields, search, agent and tasks of the question kinds."""
    from question_kinds.agent import FIRST, agent
    from question_kinds.tasks import held_out_tasks, train_tasks

    search = agl.APO(
        critic=critic,
        prompts={"prompt_template": FIRST},
        beam_width=2,
        branch_factor=3,
        beam_rounds=3,
        gradient_batch_size=6,
        val_batch_size=None,
        budget={"calls": 2000},
    )
    fields = {"policy": MODEL, "options": {"threads": args.threads}, "concurrency": 8}
    return fields, search, agent, train_tasks(args.train), held_out_tasks(args.held_out)


def main() -> int:
    """Search, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=("room_selector", "question_kinds"))
    parser.add_argument("folder")
    parser.add_argument("critic")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--train", type=int, default=40)
    parser.add_argument("--held-out", type=int, default=80)
    args = parser.parse_args()
    task = {"room_selector": room_selector, "question_kinds": question_kinds}[args.task]
    fields, search, agent, train, held_out = task(args, agl.LLM(endpoint=args.critic, model="scripted"))
    trainer = agl.Trainer(
        search, output=args.folder, run=RUN, resume=args.resume, seed=1, trackers=["files"], **fields
    )
    print(json.dumps(trainer.fit(agent, train, held_out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
