"""Commands that serve until a signal, and the tokens that they accept.

A command may have its options as the fields of a dataclass (:func:`add_command`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

import typer

T = TypeVar("T")


def add_command(
    app: typer.Typer, name: str, options: type[T], run: Callable[[T], None], **settings: Any
) -> None:
    """Add a command that calls ``run`` with an object of the dataclass ``options``. Its fields that are
    ``Annotated`` are the options and arguments; the docstring of ``run`` is the help.
    """

    def command(**given: Any) -> None:
        run(options(**given))

    hints = get_type_hints(options, include_extras=True)
    parameters = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(options).parameters.items()
        if get_origin(hints[name]) is Annotated
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    app.command(name, help=inspect.getdoc(run), **settings)(command)
