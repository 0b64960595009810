"""Other versions of verifiers and mcp are refused by name, before anything of it is imported."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys

import pytest

from agentlightning.types import UsageError


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"verifiers": "0.2.1"}, r"verifiers 0\.2\.1 is installed.*pip install 'verifiers>=0\.4,<0\.5'"),
        ({"verifiers": "0.5.0"}, r"verifiers 0\.5\.0 is installed"),
        ({}, "verifiers is not installed: pip install"),
        (
            {"verifiers": "0.4.0", "mcp": "1.30.0"},
            r"mcp 1\.30\.0 is installed, and verifiers 0\.4\.0 needs mcp >=2,<3: pip install 'verif.*OpenEnv",
        ),
        ({"verifiers": "0.4.0"}, r"mcp \(no version\) is installed"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, str], said: str
) -> None:
    def version(name: str) -> str:
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    for name in [name for name in sys.modules if name.partition(".")[0] == "agl_verifiers"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UsageError, match=said):
        importlib.import_module("agl_verifiers")
    sys.modules.pop("agl_verifiers.supported", None)
