"""Checkpoints: everything a run needs to go on exactly where it was.

``checkpoints/step-000040/`` is the state after 40 finished steps: ``policy/`` (a Hugging Face folder, whole
with LoRA too), ``adapter/`` (only with LoRA: A and B in PEFT's format), ``trainer.pt`` (optimizer and random
states, loaded with ``weights_only``) and ``manifest.json`` (step, version, the driver's own state, and the
sha256 of every other file). Invariants: a folder of that name is
complete; what is loaded equals what was saved, bit for bit; a damaged or foreign folder is refused with the
reason before anything in memory has changed.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from agl_local.network.lora import adapted
from agl_local.policy.adapters import load_adapters, save_adapters
from agl_local.policy.files import remove_unfinished, write_folder
from agl_local.policy.folder import (
    Policy,
    constant,
    dequantised_bytes,
    load_policy,
    load_state,
    read_tokenizer,
    state,
)
from agl_local.policy.shards import CONSTANT, save_shared

FORMAT = "agl-local-checkpoint/1"
_SMALL = 16 * 2**20
"""Bytes allowed for the files that are no tensors: tokenizer, manifest."""
_NAME = re.compile(r"step-(\d{6,})")


class CheckpointError(ValueError):
    """A folder that is no checkpoint, is damaged, or belongs to another policy; the text names the file."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk whose files have been verified. ``step`` counts finished steps; ``driver`` is
    JSON.
    """

    folder: Path
    step: int
    version: int
    driver: Mapping[str, Any] = field(default_factory=dict)


def save_checkpoint(
    folder: str | Path,
    *,
    step: int,
    version: int,
    policy: Policy,
    trainer: Mapping[str, Any],
    driver: Mapping[str, Any] | None = None,
    keep: int | None = None,
) -> Checkpoint:
    """Write ``folder/step-…`` after ``step`` finished steps; with ``keep``, older ones are then pruned.
    Raises OSError, before anything is written, where the disk has too little room.

    ``trainer`` is ``Updater.state_dict()``. The random states of torch and Python are added.
    """
    parent = Path(folder)
    remove_unfinished(parent)
    state_of = {"trainer": dict(trainer), "random": random_state()}
    earlier = [path for at, path in _found(parent) if at < step]
    before = earlier[-1] / "policy" if earlier else None
    _refuse_without_room(parent, policy, state_of, before)

    def fill(draft: Path) -> None:
        save_shared(policy, draft / "policy", before)
        base = {"base_model_name_or_path": str(policy.path.absolute())} if policy.path else None
        save_adapters(policy.model, draft / "adapter", about=base)
        torch.save(state_of, draft / "trainer.pt")
        manifest = {
            "format": FORMAT,
            "step": step,
            "version": version,
            "torch": torch.__version__,
            "driver": dict(driver or {}),
            "files": {
                p.relative_to(draft).as_posix(): _sha256(p) for p in sorted(draft.rglob("*")) if p.is_file()
            },
        }
        (draft / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")

    target = write_folder(parent / f"step-{step:06d}", fill)
    if keep is not None:
        prune(parent, step, keep)
    return Checkpoint(target, step, version, dict(driver or {}))


def _refuse_without_room(
    parent: Path, policy: Policy, state_of: Mapping[str, Any], before: Path | None
) -> None:
    """Raise OSError unless the disk has room for a whole checkpoint."""
    shared = before is not None and (before / CONSTANT).is_file()
    skipped = constant(policy.model) if shared else set()
    weights = sum(p.nbytes for n, p in policy.model.weights.named_parameters() if n not in skipped)
    weights += dequantised_bytes(policy.model)
    needed = weights + _tensor_bytes(state_of) + _SMALL
    parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise OSError(f"it needs {needed / 2**20:.0f} MiB and the disk has {free / 2**20:.0f} MiB left")


def _tensor_bytes(value: object) -> int:
    """Bytes of all tensors in nested mappings and sequences."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(map(_tensor_bytes, value.values()))
    return sum(map(_tensor_bytes, value)) if isinstance(value, list | tuple) else 0


def prune(folder: str | Path, step: int, keep: int) -> None:
    """Delete checkpoints before that of ``step``, beyond the last ``keep`` with it."""
    for old in [path for at, path in _found(Path(folder)) if at < step][: -(keep - 1) or None]:
        shutil.rmtree(old)


def saved_steps(folder: str | Path) -> list[int]:
    """Numbers of finished steps of which there are checkpoints in ``folder``, rising. Not verified."""
    remove_unfinished(Path(folder))
    return [step for step, _ in _found(Path(folder))]


def back_to(folder: str | Path, step: int) -> Checkpoint | None:
    """The checkpoint of ``step`` finished steps, verified; later ones are deleted. None for step 0."""
    checkpoint = read_checkpoint(Path(folder) / f"step-{step:06d}") if step else None
    for later in [path for at, path in _found(Path(folder)) if at > step]:
        shutil.rmtree(later)
    return checkpoint


def latest(folder: str | Path) -> Checkpoint | None:
    """The checkpoint of the most steps in ``folder``, verified; None if there is none. Raises
    CheckpointError.
    """
    remove_unfinished(Path(folder))
    found = _found(Path(folder))
    return read_checkpoint(found[-1][1]) if found else None


def read_checkpoint(folder: str | Path) -> Checkpoint:
    """Verify one checkpoint folder and read its manifest. Raises CheckpointError."""
    folder = Path(folder)
    file = folder / "manifest.json"
    if not file.is_file():
        raise CheckpointError(f"{folder} is no checkpoint: it has no manifest.json")
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        form = manifest["format"]
        if form != FORMAT:
            raise CheckpointError(f"{file}: format {form!r}, this version reads {FORMAT!r}")
        files: dict[str, str] = manifest["files"]
        found = Checkpoint(folder, int(manifest["step"]), int(manifest["version"]), manifest["driver"])
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is damaged: {error!r}") from error
    for name, digest in files.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{folder} is damaged: {name} is missing")
        if _sha256(path) != digest:
            raise CheckpointError(f"{folder} is damaged: the content of {name} is not what was saved")
    return found


def load_checkpoint(checkpoint: Checkpoint, policy: Policy) -> dict[str, Any]:
    """Put the saved weights into ``policy`` and restore the random states; returns the trainer's state.

    Raises CheckpointError when the saved network or vocabulary is not that of ``policy``.
    """
    folder = checkpoint.folder / "policy"
    if read_tokenizer(folder).backend.get_vocab() != policy.tokenizer.backend.get_vocab():
        raise CheckpointError(f"{checkpoint.folder} was saved from a policy with another vocabulary")
    loaded = torch.load(checkpoint.folder / "trainer.pt", map_location="cpu", weights_only=True)
    try:
        if adapted(policy.model):
            load_adapters(policy.model, checkpoint.folder / "adapter")
        else:
            saved = load_policy(folder, dtype=str(policy.model.dtype).removeprefix("torch."))
            load_state(policy.model, state(saved.model), where=f"the weights of {folder}")
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.folder} was saved from another network: {error}") from error
    restore_random_state(loaded["random"])
    trainer: dict[str, Any] = loaded["trainer"]
    return trainer


def random_state() -> dict[str, Any]:
    """The global random states of torch (CPU and CUDA) and Python."""
    version, words, gauss = random.getstate()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"torch": torch.get_rng_state(), "cuda": cuda, "python": [version, list(words), gauss]}


def restore_random_state(saved: Mapping[str, Any]) -> None:
    """The inverse of ``random_state``; states of CUDA devices that are not here are left out."""
    version, words, gauss = saved["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(saved["torch"])
    for device, one in enumerate(saved["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(one, device)


def _found(parent: Path) -> list[tuple[int, Path]]:
    """Checkpoint folders by rising step."""
    if not parent.is_dir():
        return []
    named = [(_NAME.fullmatch(path.name), path) for path in parent.iterdir()]
    return sorted((int(match[1]), path) for match, path in named if match)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
