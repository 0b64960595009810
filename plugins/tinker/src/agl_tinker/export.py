"""An adapter from the server as a folder that others load."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from agentlightning.types import UsageError
from agl_local.policy.adapters import add_adapter
from agl_local.policy.export import export_policy
from agl_local.policy.folder import fingerprint, load_policy
from agl_tinker.machine import request

_CONFIG = "adapter_config.json"
_TOKENIZER = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


def export(policy: Path, files: Mapping[str, str], folder: Path, server: str | None) -> Path:
    """Fetch an adapter's ``files`` (name → address) from ``server`` or where it keeps them, and write it to
    ``folder``: added to the weights of ``policy``, or as it is where ``policy`` has none.
    """
    with tempfile.TemporaryDirectory(prefix="agl-tinker-") as scratch:
        fetched = Path(scratch)
        for name, address in files.items():
            if "/" in name or name.startswith("."):
                raise UsageError(f"the server names a file {name!r}: only plain names are written")
            if urlsplit(address).scheme not in ("http", "https"):
                raise UsageError(
                    f"the server offers {name!r} at {address!r}: only http and https are fetched"
                )
            with (
                urllib.request.urlopen(request(address, server)) as answer,
                (fetched / name).open("wb") as file,
            ):
                shutil.copyfileobj(answer, file)
            if name.endswith(".tar.gz"):
                with tarfile.open(fetched / name) as tar:
                    tar.extractall(fetched, filter="data")
                (fetched / name).unlink()
        if not (fetched / _CONFIG).exists():
            raise UsageError(
                f"the server's export holds no {_CONFIG}: {sorted(file.name for file in fetched.iterdir())}"
            )
        if any(policy.glob("*.safetensors")):
            base = load_policy(policy)
            add_adapter(base, fetched, fingerprint(base.model))
            return export_policy(base, folder)
        folder.mkdir(parents=True, exist_ok=True)
        for path in (*(policy / known for known in _TOKENIZER), *fetched.iterdir()):
            if path.is_file():
                shutil.copy2(path, folder / path.name)
    return folder
