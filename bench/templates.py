"""Published chat templates: what they write of calls is read back, and a small agent learns through two.

    python bench/templates.py [--offline] [--no-learning] [--write]        (or: make test-templates)

The templates come out of PyPI packages, downloaded once into ``.venvs/templates`` and read, never installed:
trl (Apache-2.0), axolotl (Apache-2.0), and llama.cpp's in the source of llama-cpp-python (MIT).
``--offline`` takes those in ``plugins/local/tests/templates`` alone. Each gets a small tokenizer with its
marks as special tokens, and is tried as ``agl policy check`` does. The calc_x agent is then trained on its
bundled policy, and on policies with Qwen2.5's and Llama 3.1's templates, taught by ``calc_x.warmstart`` (kept
in ``.venvs/templates``). The last line is one JSON object; exit status 1 if a template that the check passes
has a failed round trip, or if a policy did not learn. ``--write`` keeps what was run in
``bench/results/templates.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from record import RESULTS, machine
from rich.console import Console

from agentlightning.types import UsageError
from agl_local.fresh.roundtrip import TOOLS, USER, Examination, examine
from agl_local.fresh.tokenizer import tokenizer_for
from agl_local.sft.chats import Chat
from agl_local.text.rendering import TemplateError

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / ".venvs" / "templates"
COMMITTED = ROOT / "plugins" / "local" / "tests" / "templates"
PACKAGES = {"trl==1.16.0": "wheel", "axolotl==0.19.0": "wheel", "llama-cpp-python==0.3.36": "source"}
LEARNING: dict[str, str | None] = {"bundled": None, "qwen2.5": "qwen2_5.jinja", "llama3": "llama3_1.jinja"}
"""Policy → its template among the committed ones; the bundled policy has its own."""
STEPS = 16
HELD_OUT = 96
say = Console(stderr=True, highlight=False).print


def published() -> Iterator[tuple[str, str]]:
    """Name and text of every template in the packages."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for package, kind in PACKAGES.items():
        name, _, version = package.partition("==")
        stem = f"{name.replace('-', '_')}-{version}"
        if not list(KEPT.glob(f"{stem}*")):
            only = ["--no-binary", name] if kind == "source" else ["--only-binary", ":all:"]
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *only, package]
            subprocess.run([*command, "--dest", str(KEPT)], check=True, stdout=sys.stderr)
        (file,) = KEPT.glob(f"{stem}*")
        yield from ((f"{name}/{path}", text) for path, text in _read(file))


def _read(file: Path) -> Iterator[tuple[str, str]]:
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as archive:
            for member in sorted(m for m in archive.namelist() if m.endswith(".jinja")):
                yield member.rpartition("/")[2], archive.read(member).decode()
        return
    with tarfile.open(file) as archive:
        for entry in archive:
            if entry.isfile() and "/models/templates/" in entry.name and entry.name.endswith(".jinja"):
                content = archive.extractfile(entry)
                assert content is not None
                yield entry.name.rpartition("/")[2], content.read().decode()


def committed() -> Iterator[tuple[str, str]]:
    """The templates that the tests hold."""
    for file in sorted(COMMITTED.glob("*.jinja")):
        yield file.name, file.read_text(encoding="utf-8")


def check(text: str, scratch: Path) -> Examination | str:
    """What the check finds; a text says why it refuses the template as a whole."""
    with scratch.open("w", encoding="utf-8") as file:
        file.write(text)
    try:
        chats = [Chat([USER, {"role": "assistant", "content": "42.5 in all."}], TOOLS)]
        return examine(tokenizer_for(chats, 2048, scratch))
    except (UsageError, TemplateError) as error:
        return str(error)


def learn(name: str, template: str | None) -> list[float]:
    """Held-out reward of the calc_x agent before and after training."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "examples")}
    policy = ROOT / "examples" / "calc_x" / "policy"
    if template is not None:
        policy = KEPT / template.removesuffix(".jinja")
        if not (policy / "model.safetensors").exists():
            made = [sys.executable, "-m", "calc_x.warmstart", "--out", str(policy), "--steps", "260"]
            made += ["--template", str(COMMITTED / template)]
            subprocess.run(made, check=True, env=environment, stdout=sys.stderr)
    command = [str(Path(sys.executable).parent / "agl"), "train", "--config", "examples/calc_x/cpu.yaml"]
    held_out = f"{{spec: 'generated:heldout', limit: {HELD_OUT}, seed: 1}}"
    for setting in (
        f"backend.policy={policy}",
        f"training.steps={STEPS}",
        "environment.headroom={}",
        f"environment.val={{target: calc_x.datasets:load, args: {held_out}}}",
    ):
        command += ["--set", setting]
    done = subprocess.run(
        command, check=True, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    summary = json.loads(done.stdout.splitlines()[-1])
    say(f"{name}: {json.dumps(summary)[:300]}")
    return rewards_of(summary)


def rewards_of(summary: dict[str, Any]) -> list[float]:
    """Before and after, of the summary that ``agl train`` prints."""
    return [round(float(summary["reward_before"]), 3), round(float(summary["reward_after"]), 3)]


def main() -> int:
    """Run the parts, print the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--offline", action="store_true", help="the committed templates alone")
    parser.add_argument("--no-learning", action="store_true")
    parser.add_argument(
        "--only-learning", nargs="*", metavar="POLICY", help="some policies, and no templates"
    )
    parser.add_argument("--write", action="store_true", help="keep the results")
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    if arguments.only_learning is None:
        found = examine_all(list(committed() if arguments.offline else published()))
    if not arguments.no_learning:
        names = arguments.only_learning or list(LEARNING)
        found["learning"] = {name: learn(name, LEARNING[name]) for name in names}
    if arguments.write:
        (RESULTS / "templates.json").write_text(kept_beside(found), encoding="utf-8")
    found.pop("by_template", None)
    print(json.dumps(found), flush=True)
    learned = all(after > before for before, after in found.get("learning", {}).values())
    return 0 if learned and not found.get("failed") else 1


def kept_beside(found: dict[str, Any]) -> str:
    """Return the results with what was run, beside what was not."""
    file = RESULTS / "templates.json"
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    learning = {**kept.get("learning", {}), **found.get("learning", {})}
    whole = {
        **kept,
        **found,
        "learning": learning,
        "steps": STEPS,
        "held_out": HELD_OUT,
        "machine": machine(),
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def examine_all(templates: list[tuple[str, str]]) -> dict[str, Any]:
    """Counts over all templates, and what was found of each."""
    scratch = KEPT / "template.jinja"
    by_template: dict[str, Any] = {}
    trips = failed = refused = stable = 0
    for name, text in templates:
        one = check(text, scratch)
        passed = isinstance(one, Examination) and one.ok
        refused += not passed
        if isinstance(one, Examination) and passed:
            trips += len(one.round_trips)
            failed += sum(wrong is not None for wrong in one.round_trips.values())
            stable += one.prefix is None
            by_template[name] = {"round_trips": len(one.round_trips), "prefix": one.prefix}
        else:
            why = one if isinstance(one, str) else one.failed or next(filter(None, one.round_trips.values()))
            by_template[name] = {"refused": why}
        say(f"{'✓' if passed else '✗'} {name} {by_template[name]}")
    return {
        "templates": len(templates),
        "round_trips": trips,
        "failed": failed,
        "refused_by_check": refused,
        "prefix_stable": stable,
        "by_template": by_template,
    }


if __name__ == "__main__":
    raise SystemExit(main())
