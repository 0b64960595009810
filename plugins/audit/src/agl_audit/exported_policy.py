"""Exports the policy of a run as a folder that others can use.

Invariant: an export is complete or absent, and its card names the run and the policy that the run started
from.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentlightning.algorithms.journal import read_best
from agentlightning.algorithms.provenance import ORIGIN, origin_of
from agentlightning.types import UsageError
from agl_audit.locations import find_run
from agl_audit.policies import CONFIG, NoPolicy, TrainedPolicy, choose, policies_of, run_folder

FETCHED = "origin.json"
"""File of a fetched model's folder, which names its licence."""


def find_best(what: str, *, name: str | None = None) -> TrainedPolicy:
    """Return the policy with the best held-out reward, which a run with ``training.keep_best`` keeps.
    ``name``: one of several. Raise :class:`.NoPolicy` or :class:`.NoSuchRun`.
    """
    if (folder := Path(what).expanduser() / CONFIG).is_file():
        raise NoPolicy(f"{folder.parent} is a model folder, not a run: leave --step, --policy and --best out")
    run = run_folder(what)
    return choose(run, _best(run), None, name)


def holds_policy(what: str) -> bool:
    """Return whether a run has written a policy. Raise :class:`.NoSuchRun`."""
    run = find_run(what).folder
    return run is not None and bool(policies_of(run))


def _best(run: Path) -> list[TrainedPolicy]:
    """Return the policies of the evaluation with the best held-out reward."""
    record = read_best(run)
    if record is None:
        raise NoPolicy(
            f"run {run.name} keeps no best policy: training.keep_best was off, or nothing was evaluated; "
            "choose a checkpoint with --step"
        )
    folder = run / record["policy"]
    places = {None: folder} if (folder / CONFIG).is_file() else {p.name: p for p in sorted(folder.glob("*"))}
    return [
        TrainedPolicy(path, run, name, record["step"], record)
        for name, path in places.items()
        if (path / CONFIG).is_file()
    ]


def export(policy: TrainedPolicy, target: Path, gguf: str | None = None) -> Path:
    """Copy ``policy`` to the new folder ``target`` with a model card.

    ``gguf``: write a GGUF file in this storage (``f32``, ``f16``, ``q8_0``) and a Modelfile instead; what
    llama.cpp and Ollama do otherwise stands in the card. Raise UsageError if ``target`` has content, or for a
    policy that has no such file. A folder that no run has written is not copied if it cannot be loaded.
    """
    target = target.expanduser().absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} exists and is not an empty folder: name a new folder")
    draft = target.parent / f".unfinished-{target.name}-{secrets.token_hex(4)}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        notes = None if gguf is None else _write_gguf(policy, draft, gguf, target.name)
        if notes is None:
            _check_foreign(policy)
            shutil.copytree(policy.folder, draft)
        (draft / "README.md").write_text(model_card(policy, target.name, notes), encoding="utf-8")
        (draft / ORIGIN).write_text(json.dumps(origin(policy), indent=1) + "\n", encoding="utf-8")
        if target.exists():
            target.rmdir()
        draft.rename(target)
    except OSError as error:
        raise UsageError(f"{policy.folder} cannot be exported to {target}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _check_foreign(policy: TrainedPolicy) -> None:
    """Raise UsageError for a folder from elsewhere whose files do not make a policy, where the plugin that
    reads them is installed: a card and a lineage would pass it off as one.
    """
    if policy.run is not None:
        return
    try:
        from agl_local.policy.folder import check_stored
    except ImportError:
        return
    check_stored(policy.folder)


def _write_gguf(policy: TrainedPolicy, folder: Path, storage: str, name: str) -> list[str]:
    """Write the GGUF file and the Modelfile of ``policy`` into the new ``folder``; return what the card says
    of them.
    """
    try:
        from agl_local.policy.gguf_export import export_gguf
    except ImportError as error:
        raise UsageError(f"--gguf needs the plugin agl-local, which is not installed: {error}") from error
    folder.mkdir()
    about = {"name": name, "license": _licence(policy), "description": _described(policy)}
    return export_gguf(policy.folder, folder, storage, about)


def _described(policy: TrainedPolicy) -> str:
    """Return a line that names the run and step of a policy."""
    if policy.run is None:
        return ""
    step = "" if policy.step is None else f", step {policy.step}"
    return f"Trained with Agent Lightning in the run {policy.run.name}{step}."


def _licence(policy: TrainedPolicy) -> str:
    """Return the licence of the model that a policy is, or that its run started from, where it was fetched
    with one; else an empty text.
    """
    started = _start(_read(policy.run / "run.json"), policy.name)[0] if policy.run is not None else ""
    for folder in (policy.folder, *([Path(started)] if started else [])):
        if found := str(_read(folder / FETCHED).get("licence", "")):
            return found
    return ""


def origin(policy: TrainedPolicy) -> dict[str, Any]:
    """Return what `agl lineage` reads of an exported policy: its run, step and name, and the run's head."""
    if policy.run is None:
        return origin_of(policy.folder)
    info, summary = _read(policy.run / "run.json"), _read(policy.run / "summary.json")
    found = {
        "run": info.get("run_id", policy.run.name),
        "step": policy.step,
        "policy": policy.name,
        "head": (summary.get("chain") or {}).get("head"),
    }
    return {name: value for name, value in found.items() if value is not None}


def model_card(policy: TrainedPolicy, title: str, notes: Sequence[str] | None = None) -> str:
    """Return the card of an exported policy: how to load it, its lineage, and its measured rewards.

    ``notes``: of a GGUF file, what llama.cpp and Ollama do otherwise.
    """
    library = "transformers" if notes is None else "gguf"
    head = ["---", f"library_name: {library}", "tags: [agent-lightning, reinforcement-learning]", "---", ""]
    lines = [*head, f"# {title}", ""]
    if notes is not None:
        lines += [
            f"`policy.gguf` is for llama.cpp (`llama-server -m policy.gguf --jinja`), `Modelfile` for Ollama "
            f"(`ollama create {title}`).",
            "",
            *(f"- {note}" for note in notes),
            "",
        ]
    if policy.run is None:
        return "\n".join(
            [*lines, f"A copy of the model folder `{policy.folder.name}`. No run is recorded.", ""]
        )
    info, summary = _read(policy.run / "run.json"), _read(policy.run / "summary.json")
    recipe = info.get("recipe") or {}
    started, options = _start(info, policy.name)
    steps = policy.step if policy.step is not None else summary.get("steps", info.get("steps"))
    rows = {
        "run": policy.run.name,
        "policy": policy.name,
        "agent": (info.get("about") or {}).get("agent"),
        "tasks": (info.get("about") or {}).get("tasks"),
        "recipe": recipe.get("name"),
        "driver": info.get("driver"),
        "steps": steps,
        "seed": info.get("seed"),
        "started from": "/".join(Path(started).parts[-2:]),  # without the folders above it
        "LoRA": ", ".join(f"{name} {value}" for name, value in (options.get("lora") or {}).items()),
        "base kept in": options.get("quantize"),
        "training data, digest": (info.get("data") or {}).get("train"),
        "held-out data, digest": (info.get("data") or {}).get("val"),
        "versions": ", ".join(f"{k} {v}" for k, v in (info.get("versions") or {}).items() if v),
        "head of the run's hash chain": (summary.get("chain") or {}).get("head"),
    }
    lines += ["Trained with Agent Lightning from the rewards of an agent.", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in rows.items() if value not in (None, "")]
    if policy.best is not None:
        lines += ["", *_best_reward(policy.best)]
    elif policy.step is None:
        lines += ["", *_rewards(summary)]
    return "\n".join([*lines, "", info.get("note") or "", ""]).rstrip() + "\n"


def _best_reward(best: Mapping[str, Any]) -> list[str]:
    """Return the lines of the evaluation by which the policy was chosen."""
    between = "" if best.get("ci") is None else f", 95 % interval {best['ci'][0]:.3f} to {best['ci'][1]:.3f}"
    return [
        f"Greedy reward on {best['tasks']} held-out tasks: {best['reward']:.3f}{between}. It is the best of "
        "the run's evaluations, by which this policy was chosen: a new set of tasks may give less."
    ]


def _rewards(summary: dict[str, Any]) -> list[str]:
    """Return the lines of the held-out rewards before and after training, with 95 % intervals."""
    found = []
    for when in ("before", "after"):
        reward, interval = summary.get(f"reward_{when}"), summary.get(f"ci_{when}")
        if reward is not None and interval:
            found.append(f"| {when} | {reward:.3f} | {interval[0]:.3f} to {interval[1]:.3f} |")
    if not found:
        return []
    tasks = summary.get("eval_tasks")
    title = f"Greedy reward on {tasks} held-out tasks" if tasks else "Greedy reward on held-out tasks"
    return [f"{title}:", "", "| training | mean | 95 % interval |", "|---|---|---|", *found]


def _start(info: dict[str, Any], name: str | None) -> tuple[str, dict[str, Any]]:
    """Return what a run started the policy of a name from, and the driver's options of that policy."""
    own = (info.get("policies") or {}).get(name) or {}
    return str(info.get("policy") or own.get("path") or ""), {
        **(info.get("options") or {}),
        **(own.get("options") or {}),
    }


def _cell(value: Any) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def _read(path: Path) -> dict[str, Any]:
    """Return a JSON object of a run's folder; empty for a file that an interrupted run has not written."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    return found if isinstance(found, dict) else {}
