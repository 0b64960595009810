"""Other versions of verifiers are refused by name, before anything of it is imported."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys

import pytest

from agentlightning.types import UsageError


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("0.2.1", r"verifiers 0\.2\.1 is installed.*pip install 'verifiers>=0\.4,<0\.5'"),
        ("0.5.0", r"verifiers 0\.5\.0 is installed"),
        (None, "verifiers is not installed: pip install"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, found: str | None, said: str
) -> None:
    def version(name: str) -> str:
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)
    for name in [name for name in sys.modules if name.partition(".")[0] == "agl_verifiers"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UsageError, match=said):
        importlib.import_module("agl_verifiers")
    sys.modules.pop("agl_verifiers.supported", None)
