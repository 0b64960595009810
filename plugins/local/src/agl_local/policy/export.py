"""A policy as a Hugging Face model folder that transformers, vLLM and others load as it is."""

from __future__ import annotations

from collections.abc import Mapping, Set
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


def export_policy(policy: Policy, folder: str | Path, texts: Mapping[str, str] | None = None) -> Path:
    """Write ``policy`` to ``folder`` whole or not at all; an earlier export there is replaced.

    ``texts``: further files by name, such as a card. Raises FileExistsError when ``folder`` holds anything
    that is not part of such a folder.
    """
    texts = texts or {}

    def fill(draft: Path) -> None:
        save_policy(policy, draft)
        for name, text in texts.items():
            (draft / name).write_text(text, encoding="utf-8")

    return write_folder(check_export(folder, texts.keys()), fill)


def check_export(folder: str | Path, texts: Set[str] = frozenset()) -> Path:
    """Return ``folder`` as an absolute path. Raise FileExistsError when an export would delete a file that is
    neither part of a policy nor one of ``texts``.
    """
    target = Path(folder).absolute()
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{target} is a file: name a folder to export to")
    known = _OURS | texts
    foreign = (
        sorted(path.name for path in target.iterdir() if path.name not in known) if target.is_dir() else []
    )
    if foreign:
        raise FileExistsError(
            f"{target} holds {foreign[:4]}, which an export would delete: name another folder"
        )
    return target
