"""Export the prompts that a search found, as text files that an application reads, or as one file.

They are those of the run's summary, or of the ``prompts.json`` of a search that wrote none. Invariant: an
export is complete or absent, and replaces nothing.
"""

from __future__ import annotations

import json
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentlightning.algorithms.provenance import ORIGIN, read_object
from agentlightning.types import UsageError
from agl_audit.locations import find_run


@dataclass(frozen=True, slots=True)
class FoundPrompts:
    """The prompts of a run, by name, and its summary."""

    run: Path
    texts: dict[str, str]
    summary: dict[str, Any]


def find_prompts(what: str) -> FoundPrompts | None:
    """Return the prompts that a run ended with, if it searched any. ``what``: its id, beginning, or folder.

    Raise :class:`.NoSuchRun`.
    """
    if (Path(what).expanduser() / "config.json").is_file():
        return None  # a model folder
    run = find_run(what).folder
    if run is None:
        return None
    summary = read_object(run / "summary.json") or read_object(run / "prompts.json")
    texts = summary.get("prompts")
    if not isinstance(texts, dict) or not texts:
        return None
    return FoundPrompts(run, {str(name): str(text) for name, text in texts.items()}, summary)


def export_prompts(found: FoundPrompts, target: Path) -> Path:
    """Write the prompts to the new folder ``target``, a file for each, with a card; or, where ``target`` ends
    in ``.txt``, the run's only prompt to that file. Raise UsageError if ``target`` is there already.
    """
    target = target.expanduser().absolute()
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise UsageError(f"{target} exists: name a new file or folder")
    if target.suffix == ".txt" and len(found.texts) > 1:
        raise UsageError(f"run {found.run.name} has the prompts {', '.join(found.texts)}: name a folder")
    draft = target.parent / f".unfinished-{target.name}-{secrets.token_hex(4)}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".txt":
            draft.write_text(next(iter(found.texts.values())), encoding="utf-8")
        else:
            _write(found, draft, target.name)
            if target.exists():
                target.rmdir()
        draft.rename(target)
    except OSError as error:
        raise UsageError(f"the prompts of {found.run.name} cannot be written to {target}: {error}") from error
    finally:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)
    return target


def _write(found: FoundPrompts, folder: Path, title: str) -> None:
    folder.mkdir()
    files = _files(found.texts)
    for name, file in files.items():
        (folder / file).write_text(found.texts[name], encoding="utf-8")
    (folder / "prompts.json").write_text(
        json.dumps(found.texts, ensure_ascii=False, indent=2) + "\n", encoding="utf-8"
    )
    info = read_object(found.run / "run.json")
    head = (found.summary.get("chain") or {}).get("head")
    origin = {"run": info.get("run_id", found.run.name), "prompts": list(found.texts), "head": head}
    told = {name: value for name, value in origin.items() if value is not None}
    (folder / ORIGIN).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_card(found, info, files, title), encoding="utf-8")


def _files(texts: dict[str, str]) -> dict[str, str]:
    """Name of a prompt → its file; names that differ in other characters than these get a number."""
    found: dict[str, str] = {}
    for name in texts:
        safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in name).lstrip(".") or "prompt"
        taken = {file.lower() for file in found.values()}
        file, number = f"{safe}.txt", 2
        while file.lower() in taken:
            file, number = f"{safe}-{number}.txt", number + 1
        found[name] = file
    return found


def _card(found: FoundPrompts, info: dict[str, Any], files: dict[str, str], title: str) -> str:
    """The card: what each file is, the run that found them, and its measured rewards."""
    rows = {
        "run": found.run.name,
        "agent": (info.get("about") or {}).get("agent"),
        "algorithm": found.summary.get("algorithm") or (info.get("recipe") or {}).get("name"),
        "held-out tasks": found.summary.get("eval_tasks"),
        "reward before": _reward(found.summary, "before"),
        "reward after": _reward(found.summary, "after"),
        "head of the run's hash chain": (found.summary.get("chain") or {}).get("head"),
    }
    lines = [
        f"# {title}",
        "",
        "Prompts that Agent Lightning found by an agent's rewards.",
        "",
        "| | |",
        "|---|---|",
    ]
    lines += [
        f"| {name} | {' '.join(str(value).split())} |" for name, value in rows.items() if value is not None
    ]
    lines += [
        "",
        "| prompt | file |",
        "|---|---|",
        *(f"| {name} | `{file}` |" for name, file in files.items()),
    ]
    return "\n".join([*lines, ""])


def _reward(summary: dict[str, Any], when: str) -> str | None:
    reward, interval = summary.get(f"reward_{when}"), summary.get(f"ci_{when}")
    if reward is None:
        return None
    return f"{reward:.3f}" + (f", 95 % interval {interval[0]:.3f} to {interval[1]:.3f}" if interval else "")
