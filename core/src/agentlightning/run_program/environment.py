"""Environment variables of a program: addresses of its models, its attempt, and the start of capture.

Invariants: every other variable is as in the environment of ``agl run``; of the run's secrets, the program
gets only the attempt's key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentlightning.keys import CONTEXT_KEY
from agentlightning.run_program.inside.settings import ChildSettings
from agentlightning.runner.processes.worker import SECRETS

BOOTSTRAP = Path(__file__).parent / "inside" / "bootstrap"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_OWN = ("127.0.0.1", "localhost")


def environment(
    base: Mapping[str, str], settings: ChildSettings, watched: Sequence[str], api_key_env: str | None = None
) -> dict[str, str]:
    """Return the program's environment. ``watched``: packages whose import begins capture. ``api_key_env``:
    the variable of the engine's key; the program finds the attempt's key there.

    If the user has set one of Anthropic's variables, both stay: they are for another engine.
    """
    found = {name: value for name, value in base.items() if name not in SECRETS}
    # An entry's attempt has a key of its own, which the wire layer puts in the place of this one.
    key = CONTEXT_KEY if settings.per_entry else settings.key
    found |= {
        "OPENAI_BASE_URL": settings.gateway,
        "OPENAI_API_BASE": settings.gateway,
        "OPENAI_API_KEY": key,
    }
    if not (base.get("ANTHROPIC_BASE_URL") or base.get("ANTHROPIC_API_KEY")):
        found |= {"ANTHROPIC_BASE_URL": settings.gateway.removesuffix("/v1"), "ANTHROPIC_API_KEY": key}
    if api_key_env is not None:
        found[api_key_env] = key
    if any(base.get(name) for name in _PROXIES):
        for name, other in (("no_proxy", "NO_PROXY"), ("NO_PROXY", "no_proxy")):
            found[name] = ",".join(filter(None, [base.get(name) or base.get(other), *_OWN]))
    found |= settings.variables(list(watched))
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(BOOTSTRAP), base.get("PYTHONPATH")]))
    return found
