"""Record modules' turns as spans, current while their code runs, and tag the steps within them.

A DSPy module has no name of its own. The user names it by its class, by the attribute of the program that
holds it (``self.writer = dspy.Predict(…)``), or by the class of its signature. What nobody named, and the
parts of DSPy's own modules (``react`` and ``extract.predict`` of a ``ReAct``), are steps of the module that
runs them: they have its name, and a tag ``node``. DSPy itself knows which modules run, in threads too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from agentlightning.capture.context import current_attempt
from agentlightning.capture.identity import agent_tags
from agentlightning.capture.spans import AgentSpan

Wrapped = Callable[..., Any]


def call(wrapped: Wrapped, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``Module.__call__``."""
    with running(module):
        return wrapped(*args, **kwargs)


async def acall(wrapped: Wrapped, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``Module.acall``."""
    with running(module):
        return await wrapped(*args, **kwargs)


@contextmanager
def running(module: Any) -> Iterator[None]:
    """Record a turn within the block, or tag a step; outside an attempt do nothing."""
    if current_attempt() is None:
        yield
        return
    from dspy import settings

    callers = list(settings.caller_modules or ())
    path = path_within_agent(module, callers)
    around = agent_tags(node=".".join(path)) if path else AgentSpan.for_agent(name_of(module, callers)).run()
    with around:
        yield


def path_within_agent(module: Any, callers: list[Any]) -> list[str]:
    """Return the attributes that lead from the running agent to ``module``; none if it is an agent itself.
    ``callers``: the modules that run it, the outermost first.
    """
    path: list[str] = []
    for above in range(len(callers), 0, -1):
        holder = callers[above - 1]
        held_as = attribute_of(holder, module)
        if is_dspys(type(module)) and not is_program(holder) and held_as:
            path.insert(0, held_as)
        elif given_name(module, callers[:above]) is None:
            path.insert(0, type(module).__name__)
        else:
            break
        module = holder
    return path


def name_of(module: Any, callers: list[Any]) -> str:
    """Return an agent's name: the user's for it, else its class's."""
    return given_name(module, callers) or type(module).__name__


def given_name(module: Any, callers: list[Any]) -> str | None:
    """Return how the user named a module; ``None`` where he did not."""
    if not is_dspys(type(module)):
        return type(module).__name__
    if callers and is_program(callers[-1]) and (held_as := attribute_of(callers[-1], module)):
        return held_as
    signature = getattr(getattr(module, "signature", None), "__name__", "StringSignature")
    return None if signature == "StringSignature" else str(signature)  # what DSPy calls those without a class


def is_dspys(cls: type) -> bool:
    """Return whether a class is DSPy's own."""
    return cls.__module__.partition(".")[0] == "dspy"


def is_program(holder: Any) -> bool:
    """Return whether the user wrote the code that runs its parts, as no subclass of a ``ReAct`` does."""
    return any(
        not is_dspys(cls) for cls in type(holder).__mro__ if {"forward", "aforward"} & vars(cls).keys()
    )


def attribute_of(holder: Any, module: Any) -> str | None:
    """Return the attribute by which ``holder`` has ``module``, as DSPy writes it: ``writer``, ``players[0]``,
    ``players[bob]``.
    """
    held: dict[str, Any] = vars(holder)
    for name, value in held.items():
        if value is module:
            return name
        parts = dict(enumerate(value)) if isinstance(value, list | tuple) else value
        for key, item in parts.items() if isinstance(parts, dict) else ():
            if item is module:
                return f"{name}[{key}]"
    return None
