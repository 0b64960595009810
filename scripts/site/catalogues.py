"""Parts of the reference: the fields of recipes, and the errors that a person can fix."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import agentlightning
import agl_verl.plugin
from agentlightning.plugins import manager
from agentlightning.types import Recipe, UsageError, training
from agentlightning.types.base import LEARNED_NOTHING

ABOUT_RECIPES = """\
A recipe is an algorithm as data: `training.algorithm` names one, `training.recipe` overrides its
fields, `agl.GRPO(group_size=16)` does the same in Python. [Algorithms](../algorithms.md) has the
papers and formulas, [verl](../verl.md) which driver implements which field; a field that a driver
does not implement is refused."""
ABOUT_ERRORS = f"""\
An error that a person can fix is printed as one message, without a traceback, and ends a command
with status 2; a run that learned nothing ends with {LEARNED_NOTHING}. In Python they are exceptions
below `agentlightning.types.UsageError`. What happens to a *rollout* that fails is decided by the
kind of its failure: [failures](../failures.md). [Troubleshooting](../troubleshooting.md) goes from
the symptom."""
_NOT_IMPORTED = ("sitecustomize", "__main__")
"""Modules that do something when they are imported."""


def recipes() -> str:
    """Every field of a recipe, and what each recipe of the suite sets."""
    lines = [
        "## training.recipe",
        "",
        ABOUT_RECIPES,
        "",
        "| field | type | default | meaning |",
        "|---|---|---|---|",
        *(
            f"| `{name}` | `{kind}` | {_code(default)} | {_line(text)} |"
            for name, kind, default, text in fields()
        ),
        "",
        "### What each recipe sets",
        "",
        "Other fields have the defaults above.",
        "",
        "| recipe | sets |",
        "|---|---|",
    ]
    defaults = {name: getattr(Recipe(name=""), name) for name, *_ in fields()}
    for name, spec in sorted(manager.build([agl_verl.plugin], discover=False).recipes.items()):
        made = spec.factory()
        own = [
            f"{key}: {getattr(made, key)}" for key, value in defaults.items() if getattr(made, key) != value
        ]
        shown = ", ".join(f"`{one}`" for one in own if not one.startswith("name: "))
        lines.append(f"| `{name}` | {shown or 'nothing'} |")
    return "\n".join(lines) + "\n"


def fields() -> Iterator[tuple[str, str, str, str]]:
    """Yield name, type, default and text of a recipe's fields, read from the source."""
    tree = ast.parse(inspect.getsource(training))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Recipe").body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            text = str(after.value.value) if said else ""  # type: ignore[union-attr]
            kind = ast.unparse(node.annotation).replace("|", "or")
            yield node.target.id, kind, _default(node.value), text


def _default(value: ast.expr | None) -> str:
    if isinstance(value, ast.Call):  # msgspec.field(default_factory=lambda: …)
        return next(
            (ast.unparse(k.value.body) for k in value.keywords if isinstance(k.value, ast.Lambda)), ""
        )
    return "" if value is None else ast.unparse(value)


def errors() -> str:
    """Every error that is printed as one message, with its exit status."""
    lines = [
        "# Errors",
        "",
        ABOUT_ERRORS,
        "",
        "| error | module | status | when |",
        "|---|---|---|---|",
    ]
    for error in usage_errors():
        text = _line(inspect.cleandoc(error.__dict__.get("__doc__") or ""))
        lines.append(f"| `{error.__name__}` | `{error.__module__}` | {error.status} | {text} |")
    return "\n".join(lines) + "\n"


def usage_errors() -> list[type[UsageError]]:
    """Every class below :class:`UsageError` in the core, by name."""
    for module in pkgutil.walk_packages(agentlightning.__path__, "agentlightning."):
        if not module.name.endswith(_NOT_IMPORTED) and ".bootstrap" not in module.name:
            importlib.import_module(module.name)
    found: set[type[UsageError]] = set()
    todo: list[type[UsageError]] = [UsageError]
    while todo:
        below = [one for one in todo.pop().__subclasses__() if one not in found]
        found.update(below)
        todo += below
    core = Path(agentlightning.__path__[0])
    mine = [one for one in found if Path(inspect.getfile(one)).is_relative_to(core)]
    return sorted(mine, key=lambda one: one.__name__)


def undocumented() -> list[str]:
    """Every recipe field and error without a text."""
    found = [f"recipe field {name}" for name, _, _, text in fields() if not text and name != "name"]
    return found + [f"error {one.__name__}" for one in usage_errors() if not one.__dict__.get("__doc__")]


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _line(text: str) -> str:
    import reference

    return reference.plain(text)
