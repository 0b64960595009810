"""A pretrained model of 135 million parameters on this machine: agl-local beside transformers, vLLM and TRL.

    python bench/real_model/run.py              # eight minutes; more the first time, for environments
    python bench/real_model/run.py --quick      # small sizes, to see that every subject runs
    python bench/real_model/run.py --without vllm trl --model PATH/TO/MODEL

Generation: tokens per second of prefill and decode at 1, 8, 32 and 64 conversations at a time. Updates:
seconds for 64 sequences of 250 tokens (8 prompts of 200, 8 sampled answers of 50 each), and for the same with
1,000 tokens in front that all share. agl-local computes equal beginnings once and trains on all 64;
transformers and TRL compute every sequence from its beginning, in equal forward passes, and are timed on the
first ``rows`` of the 64, of which each costs the same; ``seconds_a_row`` compares. What is timed: agl-local
``Updater.update``; transformers: forward, PPO's loss, backward, clipping, fused AdamW; TRL:
``GRPOTrainer.compute_loss`` on prepared inputs (nothing is generated), backward, clipping, its optimizer's
step. All must find the same gradient norm on the same sequences.

Every subject is a process of its own with ``--threads`` threads and float32; vLLM and TRL live in
``.venvs/vllm`` and ``.venvs/trl`` (scripts/environments.toml). Answers are greedy and of a fixed length; no
prompt comes twice, so that no cache helps. Subjects take turns; figures are medians, spreads are minimum and
maximum. ``roofline`` is the least time that this machine needs for the arithmetic or the memory traffic of
what a subject computes (``work.py``, by limits that ``probe.py`` measures first) over the time it took. A
subject that cannot run has a row with the reason. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import generation
import updates
from children import Child, SubjectError
from rich.console import Console
from rich.table import Table
from texts import Texts
from work import Limits

from agl_local.network.config import ModelConfig, read_json
from agl_local.policy.fetch import fetch

ROOT = Path(__file__).resolve().parents[2]
ENGINES = {
    "agl-local": "engine_inside",
    "agl-local, HTTP": "engine_http",
    "transformers": "engine_transformers",
    "vllm": "engine_vllm",
}
STEPS = {"agl-local": "step_local", "transformers": "step_transformers", "trl": "step_trl"}
SHARING = {"agl-local"}
"""Trainers that compute equal beginnings once."""
ENVIRONMENTS = ("vllm", "trl")
OPTIONAL = ["agl-local, HTTP", "transformers", "vllm", "trl"]
UPDATE_COLUMNS = (
    *("job", "subject", "rows", "positions", "seconds", "cpu_seconds", "seconds_a_row"),
    *("roofline", "peak_mb"),
)
Row = dict[str, Any]


class Stage:
    """Starts the subjects of a kind of measurement, one after the other, and notes those that cannot run."""

    def __init__(self, folder: Path, threads: int, without: set[str]) -> None:
        self.folder = folder
        self.threads = threads
        self.without = without
        self.not_run: list[Row] = []
        self.versions: dict[str, str] = {}
        self.start_seconds: dict[str, float] = {}

    @contextmanager
    def children(self, modules: dict[str, str]) -> Iterator[list[Child]]:
        """Yield those subjects that start; they end with the block."""
        started: list[Child] = []
        try:
            for name, module in modules.items():
                try:
                    child = Child(name, module, self._python(name), self.folder, self.threads)
                except SubjectError as error:
                    self.not_run.append({"subject": name, "not_run": str(error)})
                    continue
                print(f"{name}: {child.version}", file=sys.stderr, flush=True)
                self.versions[name] = child.version
                self.start_seconds[f"{name} ({module})"] = round(child.start_seconds, 1)
                started.append(child)
            yield started
        finally:
            for child in started:
                child.close()

    def _python(self, name: str) -> Path:
        if name in self.without:
            raise SubjectError("left out by --without")
        if name not in ENVIRONMENTS:
            return Path(sys.executable)
        made = subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "environment"), name],
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        if made.returncode:
            raise SubjectError(f"scripts/environment {name} ended with status {made.returncode}")
        return Path(made.stdout.splitlines()[-1])


def measure(given: argparse.Namespace) -> Row:
    """Carry out the stages and return their figures."""
    began = time.perf_counter()
    folder = fetch(given.model).path
    shape, texts = ModelConfig.from_hf(read_json(folder / "config.json")), Texts(folder, seed=1)
    stage = Stage(folder, given.threads, set(given.without))
    with stage.children({"machine": "probe"}) as (probe,):
        found = probe.ask("limits").result
    limits = Limits(found["operations"], found["bytes"])
    sizes = generation.Sizes(given.prompt, given.new, tuple(given.batches), given.rounds)
    with stage.children(ENGINES) as engines:
        generated = generation.measure(engines, texts, sizes, shape, limits)
        memory = {child.name: child.peak_mb() for child in engines}
        jobs = [_job(name, engines[0], texts, given, header) for name, header in _headers(given)]
    with stage.children(STEPS) as steps:
        pairs = [(child, child.name in SHARING) for child in steps]
        updated = updates.measure(pairs, jobs, given.rounds, shape, limits)
    return {
        "policy": folder.name,
        "threads": given.threads,
        "dtype": "float32",
        "rounds": given.rounds,
        "limits": {
            "gflops": round(limits.operations / 1e9, 1),
            "gflops_by_product": {name: round(rate / 1e9, 1) for name, rate in found["rates"].items()},
            "gigabytes_per_second": round(limits.bytes / 1e9, 1),
        },
        "versions": stage.versions,
        "generation": {"prompt_tokens": given.prompt, "new_tokens": given.new, "rows": generated},
        "engine_peak_mb": memory,
        "updates": updated,
        "not_run": stage.not_run,
        "start_seconds": stage.start_seconds,
        "seconds": round(time.perf_counter() - began, 1),
    }


def _headers(given: argparse.Namespace) -> list[tuple[str, int]]:
    return [("no header", 0), (f"header of {given.header}", given.header)]


def _job(name: str, engine: Child, texts: Texts, given: argparse.Namespace, header: int) -> updates.Job:
    sequences = updates.sample(
        engine, texts, given.groups, given.samples, given.update_prompt, given.update_new, header
    )
    return updates.Job(name, sequences, given.whole_rows[1 if header else 0])


def shown(result: Row) -> Iterator[Table]:
    """Yield the figures as tables for people."""
    table = Table(title="tokens per second, and share of the roofline")
    for heading in ("subject", "batch", "prefill", "", "decode", "", "equal tokens"):
        table.add_column(heading)
    for row in result["generation"]["rows"]:
        if "not_run" in row:
            table.add_row(row["subject"], row["not_run"])
            continue
        cells = [row["subject"], str(row["batch"])]
        for name in ("prefill", "decode"):
            cells += [f"{row[f'{name}_tokens_per_second']:,.0f}", f"{row[f'{name}_roofline']:.0%}"]
        table.add_row(*cells, f"{row['tokens_equal']:.1%}")
    yield table
    table = Table(title="one update")
    for heading in UPDATE_COLUMNS:
        table.add_column(heading.replace("_", " "))
    for row in result["updates"]:
        if "not_run" in row:
            table.add_row("", row["subject"], row["not_run"])
            continue
        table.add_row(*(str(row[key]) for key in UPDATE_COLUMNS))
    yield table


QUICK = {
    "rounds": 1,
    "batches": [1, 4],
    "prompt": 16,
    "new": 4,
    "groups": 2,
    "samples": 4,
    "update_prompt": 24,
    "update_new": 8,
    "header": 64,
    "whole_rows": [8, 4],
}


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the sizes of a run; ``--quick`` changes their defaults."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: the figures are of no use")
    parser.add_argument(
        "--model", default="smollm2", help="a folder, or a name that `agl policy fetch` knows"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--without", nargs="+", default=[], choices=OPTIONAL, metavar="SUBJECT")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt of the generation")
    parser.add_argument("--new", type=int, default=16, help="tokens of an answer, after the first")
    parser.add_argument("--groups", type=int, default=8, help="prompts of an update")
    parser.add_argument("--samples", type=int, default=8, help="answers to each of them")
    parser.add_argument("--update-prompt", type=int, default=200, help="tokens of such a prompt")
    parser.add_argument("--update-new", type=int, default=50, help="tokens of such an answer")
    parser.add_argument(
        "--header", type=int, default=1000, help="tokens in front of all prompts, in the second job"
    )
    parser.add_argument(
        "--whole-rows",
        nargs=2,
        type=int,
        default=[8, 4],
        metavar=("PLAIN", "WITH_HEADER"),
        help="sequences that a subject trains on which computes each of them whole",
    )
    if parser.parse_known_args(arguments)[0].quick:
        parser.set_defaults(**QUICK)
    return parser.parse_args(arguments)


def main() -> int:
    """Measure, show, print JSON."""
    result = measure(parsed())
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 140)
    for table in shown(result):
        console.print(table)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
