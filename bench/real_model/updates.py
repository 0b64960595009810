"""Seconds of one update: every subject trains on the same sequences with the same loss, in turn."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from typing import Any

from batch import Sampled
from children import Answer, Child, SubjectError
from texts import Texts
from work import Limits, forward_operations, trie_spans

from agl_local.network.config import ModelConfig

AGREE = 1e-3
"""Largest relative difference of two subjects' gradient norms for the same sequences and weights."""


@dataclass(frozen=True)
class Job:
    """Sequences to train on. ``whole``: how many of them a subject takes that computes each of them whole."""

    name: str
    sequences: list[Sampled]
    whole: int


def sample(
    engine: Child, texts: Texts, groups: int, samples: int, prompt: int, new: int, header: int
) -> list[Sampled]:
    """Return ``groups`` × ``samples`` sequences, which the engine wrote behind prompts with one header."""
    common = texts.piece(header)
    prompts = [common + texts.piece(prompt) for _ in range(groups)]
    answers = engine.ask("sample", prompts=prompts, samples=samples, new=new).result
    return [
        {
            "prompt": prompts[i // samples],
            "answer": answer["ids"],
            "logprobs": answer["logprobs"],
            "advantage": texts.sign(),
        }
        for i, answer in enumerate(answers)
    ]


def measure(
    subjects: list[tuple[Child, bool]], jobs: list[Job], rounds: int, shape: ModelConfig, limits: Limits
) -> list[dict[str, Any]]:
    """Return a row for each job and subject; each subject comes with whether it shares equal beginnings.

    All first train on those sequences of the first job that every subject takes. That warms them up, and they
    must find the same gradient norm. Then they take turns.
    """
    failed: dict[str, str] = {}
    taken: dict[tuple[str, str], list[Answer]] = {}
    norms: dict[str, float] = {}

    def update(child: Child, sequences: list[Sampled]) -> Answer | None:
        try:
            return child.ask("update", sequences=sequences)
        except SubjectError as error:
            failed[child.name] = str(error)
            return None

    for child, _ in subjects:
        answer = update(child, jobs[0].sequences[: jobs[0].whole])
        if answer is not None:
            norms[child.name] = answer.result["grad_norm"]
    if max(norms.values()) / min(norms.values()) - 1 > AGREE:
        raise RuntimeError(f"the subjects do not compute the same gradient: {norms}")
    for round_ in range(rounds):
        for job in jobs:
            for child, shares in subjects[round_ % 2 :] + subjects[: round_ % 2]:
                if child.name not in failed:
                    answer = update(child, job.sequences if shares else job.sequences[: job.whole])
                    taken.setdefault((job.name, child.name), []).extend([answer] if answer else [])
        print(f"updates: round {round_ + 1} of {rounds}", file=sys.stderr, flush=True)
    rows = [
        _row(job, child, shares, taken[job.name, child.name], shape, limits)
        for job in jobs
        for child, shares in subjects
        if taken.get((job.name, child.name))
    ]
    for row in rows:
        row["grad_norm_first"] = round(norms[row["subject"]], 6)
    return rows + [{"subject": name, "not_run": reason} for name, reason in failed.items()]


def _row(
    job: Job, child: Child, shares: bool, taken: list[Answer], shape: ModelConfig, limits: Limits
) -> dict[str, Any]:
    sequences = job.sequences if shares else job.sequences[: job.whole]
    inputs = [one["prompt"] + one["answer"][:-1] for one in sequences]
    spans = trie_spans(inputs) if shares else [(0, len(ids)) for ids in inputs]
    trained = sum(len(one["answer"]) for one in sequences)
    least = 3.0 * forward_operations(shape, spans, trained) / limits.operations
    seconds = [answer.seconds for answer in taken]
    middle = statistics.median(seconds)
    return {
        "job": job.name,
        "subject": child.name,
        "rows": len(sequences),
        "tokens": sum(len(one["prompt"]) + len(one["answer"]) for one in sequences),
        "tokens_trained": trained,
        "positions": sum(end - first for first, end in spans),
        "seconds": round(middle, 3),
        "seconds_spread": [round(min(seconds), 3), round(max(seconds), 3)],
        "cpu_seconds": round(statistics.median(answer.cpu_seconds for answer in taken), 3),
        "seconds_a_row": round(middle / len(sequences), 4),
        "roofline": round(least / middle, 3),
        "peak_mb": child.peak_mb(),
    }
