"""``agl.APO`` and its siblings: names of algorithms that the plugin ``agl-apo`` registers.

Core searches no prompts. A call of these names makes the registered algorithm, or says how to install it.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from agentlightning.plugins.manager import load, pick

T = TypeVar("T")


class APO(Generic[T]):
    """Textual gradients with beam search: ``agl.APO(critic=…, beam_width=…)``, see ``agl_apo.beam.APO``.

    ``T``: the type of a task, for type checkers alone.
    """

    algorithm = "apo"

    def __new__(cls, *args: Any, **settings: Any) -> Any:
        """Return the algorithm. Raise ``PluginError`` if agl-apo is not installed."""
        return pick(load().algorithms, "recipe or algorithm", cls.algorithm).factory(*args, **settings)


class GEPA(APO[T]):
    """Reflective search through the library ``gepa``, see ``agl_apo.reflective.GEPA``."""

    algorithm = "gepa"


class Alternate(APO[T]):
    """Weights and prompts in one loop, see ``agl_apo.alternate.Alternate``."""

    algorithm = "alternate"
