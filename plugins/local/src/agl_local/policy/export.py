"""A policy as a Hugging Face model folder that transformers, vLLM and others load as it is."""

from __future__ import annotations

from pathlib import Path

from agl_local.policy.files import write_folder
from agl_local.policy.folder import Policy, save_policy

_OURS = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


def export_policy(policy: Policy, folder: str | Path) -> Path:
    """Write ``policy`` to ``folder`` whole or not at all; an earlier export there is replaced.

    Raises FileExistsError when ``folder`` holds anything that is not part of a model folder.
    """
    target = Path(folder).absolute()
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{target} is a file: name a folder to export to")
    foreign = (
        sorted(path.name for path in target.iterdir() if path.name not in _OURS) if target.is_dir() else []
    )
    if foreign:
        raise FileExistsError(
            f"{target} holds {foreign[:4]}, which an export would delete: name another folder"
        )
    return write_folder(target, lambda draft: _save(policy, draft))


def _save(policy: Policy, draft: Path) -> None:
    save_policy(policy, draft)
