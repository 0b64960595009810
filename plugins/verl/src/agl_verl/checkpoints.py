"""Checkpoints of a run with verl: what verl saved, and beside it what the algorithm wants kept.

Invariant: a checkpoint is whole when ``job.json`` lies in it, which is written last and removed first.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from agentlightning.types import UsageError
from agl_verl.shape import Shape

STATE = "job.json"
WEIGHTS = Path("actor") / "huggingface"


class Checkpoints:
    """Those in ``folder``, each ``global_step_<finished steps>`` as verl names them, of one ``shape``."""

    def __init__(self, folder: Path, shape: Shape | None = None) -> None:
        self.folder, self.shape = folder, shape or Shape()

    def place(self, step: int) -> Path:
        """The folder of a checkpoint."""
        return self.folder / f"global_step_{step}"

    def steps(self) -> list[int]:
        """Finished steps of the whole ones, oldest first."""
        found = (path.parent.name.rpartition("_")[2] for path in self.folder.glob(f"global_step_*/{STATE}"))
        return sorted(int(name) for name in found if name.isdigit())

    def back_to(self, step: int | None) -> int | None:
        """The last whole one, or that of ``step``; ``None`` if there is none. Later ones are deleted.
        UsageError for one that is not there, or of another shape.
        """
        steps = self.steps()
        if step is not None and step and step not in steps:
            raise UsageError(f"{self.folder}: there is no checkpoint of step {step}; there is {steps}")
        chosen = step if step is not None else (steps[-1] if steps else None)
        if chosen and (why := self.shape.differs(self.place(chosen))):
            raise UsageError(f"checkpoint {self.place(chosen)}: {why}")
        for later in self.folder.glob("global_step_*"):
            name = later.name.rpartition("_")[2]
            if name.isdigit() and int(name) > (chosen or 0):
                (later / STATE).unlink(missing_ok=True)
                shutil.rmtree(later)
        return chosen or None

    def state(self, step: int) -> dict[str, Any]:
        """What the algorithm had kept."""
        found: dict[str, Any] = json.loads((self.place(step) / STATE).read_text(encoding="utf-8"))
        return found

    def complete(self, step: int, state: dict[str, Any]) -> bool:
        """Put ``state`` beside what verl saved; whether it had saved this step. UsageError if a part of it is
        not here.
        """
        place = self.place(step)
        if not place.is_dir():
            return False
        if missing := self.shape.lacks(place):
            raise UsageError(
                f"checkpoint {place}: verl has saved it, but there is no {missing} here; all nodes must "
                "share the run's folder"
            )
        passing = place / f"{STATE}.tmp"
        with passing.open("w", encoding="utf-8") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        passing.replace(place / STATE)
        return True

    def prune(self, keep: int) -> None:
        """Remove whole ones but the last ``keep``. verl's own pruning would leave us none for a moment."""
        for step in self.steps()[:-keep]:
            (self.place(step) / STATE).unlink()
            shutil.rmtree(self.place(step))

    def export(self, step: int, policy: Path, folder: Path) -> Path:
        """A checkpoint's weights, with tokenizer and chat template of the ``policy`` it began with."""
        folder.mkdir(parents=True, exist_ok=True)
        for source in (policy, self.place(step) / WEIGHTS):
            for file in source.iterdir():
                if file.is_file() and not (source != policy and file.name in KEPT):
                    shutil.copy2(file, folder / file.name)
        return folder


KEPT = frozenset({"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                  "generation_config.json"})  # fmt: skip
"""Files of the policy that training does not change; written anew by other libraries they might: verl's
``config.json`` calls the weights bfloat16, which they are not.
"""
