"""Sending an agent to another process: by reference to its module, as pickle does.

Invariant: an agent that cannot be sent is refused before any rollout is leased, with what to do about it.
"""

from __future__ import annotations

import pickle
import sys
from multiprocessing import spawn
from typing import Any

from agentlightning.decorator.agents import LitAgent
from agentlightning.runner.attempt_keys import CannotRun

_PREPARED = ("sys_path", "sys_argv", "dir", "orig_dir")
_MAIN = ("init_main_from_name", "init_main_from_path")


def pickled(agent: LitAgent[Any]) -> bytes:
    """The agent as pickle; :class:`CannotRun` says why it has none."""
    try:
        data = pickle.dumps(agent)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        name = getattr(agent, "name", type(agent).__name__)
        raise CannotRun(
            f"isolation='process' sends the agent {name!r} to another process, which must be able to import "
            f"it: {error}. Define it at the top level of a module (no lambda, no function or class inside "
            "another, no open connection or lock as an attribute), or use isolation='inline'"
        ) from None
    main: Any = sys.modules["__main__"]
    if b"__main__" in data and not (getattr(main, "__spec__", None) or getattr(main, "__file__", None)):
        raise CannotRun(
            "isolation='process': the agent was defined in __main__ without a file (a notebook, a prompt, "
            "python -c), which another process cannot import: put it into a module, or use isolation='inline'"
        )
    return data


def preparation(data: bytes) -> dict[str, Any]:
    """What the other process needs to import the agent: paths, and the main script if it is from there."""
    try:
        found = spawn.get_preparation_data("agl-worker")
    except RuntimeError:
        raise CannotRun(
            "isolation='process': the main script starts a runner while it is being imported by a worker; "
            'put what it does under `if __name__ == "__main__":`'
        ) from None
    wanted = _PREPARED + (_MAIN if b"__main__" in data else ())
    return {key: found[key] for key in wanted if key in found}


def unpickled(data: bytes, prepared: dict[str, Any]) -> LitAgent[Any]:
    """The agent, in the other process; raises what its import raises."""
    import multiprocessing

    process: Any = multiprocessing.current_process()
    process._inheriting = True  # so that a main script without a guard is told so
    try:
        spawn.prepare(prepared)
        agent: LitAgent[Any] = pickle.loads(data)
    finally:
        del process._inheriting
    return agent
