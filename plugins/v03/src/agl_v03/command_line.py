"""``lightning_cli`` of Agent Lightning 0.1 to 0.3: make objects whose arguments the command line gives.

``agent, trainer = agl.lightning_cli(MyAgent, agl.Trainer)`` reads ``--myagent.max-turns 3 --trainer.n-workers
10``.
"""

from __future__ import annotations

import argparse
import inspect
import types
from typing import Any, Union, get_args, get_origin, get_type_hints

_TRUE, _FALSE = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")
_NOTHING = ("none", "null", "~", "nil")
_TRAINER: dict[str, Any] = {
    "dev": bool,
    "n_workers": int,
    "n_runners": int,
    "max_tasks": int,
    "max_rollouts": int,
    "daemon": bool,
    "port": int,
    "tracer": str,
}
"""The arguments that a trainer of then had, by type; those of today stand in a run's file."""


def lightning_cli(*classes: type[Any]) -> Any:
    """Return an object of each class, or the object of the only one. The arguments of each constructor are
    options ``--class.name``; those without a default must be given.
    """
    parser = argparse.ArgumentParser(description="Arguments of the objects of this program.")
    places: dict[type[Any], dict[str, str]] = {}
    for cls in classes:
        places[cls] = {}
        for name, (kind, default) in _parameters(cls).items():
            place = places[cls][name] = f"{cls.__name__.lower()}.{name}"
            optional = (
                {"default": argparse.SUPPRESS}
                if default is not inspect.Parameter.empty
                else {"required": True}
            )
            parser.add_argument(
                f"--{place.replace('_', '-')}",
                dest=place,
                **optional,
                **_reader(kind),
                help=f"of {cls.__name__}",
            )
    given = vars(parser.parse_args())
    made = [
        cls(**{name: given[place] for name, place in places[cls].items() if place in given})
        for cls in classes
    ]
    return made[0] if len(made) == 1 else tuple(made)


def _parameters(cls: type[Any]) -> dict[str, tuple[Any, Any]]:
    """Return argument → (type, default)."""
    import agentlightning

    if issubclass(cls, agentlightning.Trainer):
        return {name: (kind, None) for name, kind in _TRAINER.items()}
    hints = get_type_hints(cls.__init__)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        name: (hints.get(name, str), one.default)
        for name, one in inspect.signature(cls).parameters.items()
        if one.kind in named
    }


def _reader(kind: Any) -> dict[str, Any]:
    """Return how an option of this type is read."""
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    nullable = type(None) in options
    plain = next((one for one in options if one is not type(None)), str)
    if get_origin(plain) is list or plain is list:
        return {"nargs": "*", **_reader((get_args(plain) or (str,))[0])}
    read = _boolean if plain is bool else plain if plain in (int, float, str) else str

    def value(text: str) -> Any:
        return None if nullable and text.lower() in _NOTHING else read(text)

    value.__name__ = getattr(plain, "__name__", "value")  # argparse says it of a text that it cannot read
    return {"type": value}


def _boolean(text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise ValueError(text)
    return text.lower() in _TRUE
