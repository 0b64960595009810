"""Fields of a run's configuration that a plugin adds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # pydantic is not imported for it
    from pydantic import BaseModel


@dataclass(frozen=True, slots=True)
class SectionSpec:
    """Fields: those of the model that ``fields()`` returns join the section ``place`` (empty: the top). Its
    validators see the whole section.
    """

    name: str
    place: str = ""
    fields: Callable[[], type[BaseModel]] | None = None
    agent: Callable[[Any], Any] | None = None
    """``agent(config)`` makes the agent that these fields of a ``RunConfig`` name, or returns ``None``."""
    rewrite: Callable[[dict[str, Any], str], None] | None = None
    """``rewrite(data, place)`` writes fields in place of other keys of a run's file, before they are checked;
    an error begins with ``place``. It is called again where ``--set`` changed the file.
    """
