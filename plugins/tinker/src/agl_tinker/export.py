"""An adapter from the server as a folder that others load."""

from __future__ import annotations

import json
import shutil
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from agentlightning.types import UsageError
from agl_local.network.lora import Lora, adapt
from agl_local.policy.adapters import load_adapters
from agl_local.policy.export import export_policy
from agl_local.policy.folder import load_policy

_TOKENIZER = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def export(policy: Path, files: Mapping[str, str], folder: Path) -> Path:
    """Fetch an adapter's ``files`` (name → address) and write it to ``folder``: added to the weights of
    ``policy``, or as it is where ``policy`` has none.
    """
    with tempfile.TemporaryDirectory(prefix="agl-tinker-") as scratch:
        for name, address in files.items():
            if "/" in name or name.startswith("."):
                raise UsageError(f"the server names a file {name!r}: only plain names are written")
            with urllib.request.urlopen(address) as answer, (Path(scratch) / name).open("wb") as file:
                shutil.copyfileobj(answer, file)
        if any(policy.glob("*.safetensors")):
            return _merged(policy, Path(scratch), folder)
        folder.mkdir(parents=True, exist_ok=True)
        for file_name in files:
            shutil.copy2(Path(scratch) / file_name, folder / file_name)
        for known in _TOKENIZER:
            if (policy / known).exists():
                shutil.copy2(policy / known, folder / known)
    return folder


def _merged(policy: Path, adapter: Path, folder: Path) -> Path:
    said = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    base = load_policy(policy)
    lora = Lora(rank=int(said["r"]), alpha=float(said["lora_alpha"]), targets=tuple(said["target_modules"]))
    adapt(base.model, lora, 0)
    load_adapters(base.model, adapter)
    return export_policy(base, folder)
