"""The log of runs: ``training.log`` in a run's folder, and one file for all runs of this user.

Each line is a time, a run, a level and a text. Log records of more lines go on with indented ones.
"""

from __future__ import annotations

import os
from pathlib import Path

from agentlightning.store.places import find_home

NAME = "training.log"
VARIABLE = "AGL_LOG"


def log_of_all_runs(given: str | Path | None = None) -> Path | None:
    """Return the file for all runs: the given one, that of ``AGL_LOG``, or
    ``~/.agent-lightning/logs/training.log``. ``None`` if the given one is an empty text, or if there is none
    and this user has no home: no such file.
    """
    given = os.environ.get(VARIABLE) if given is None else given
    if given is None:
        home = find_home()
        return None if home is None else home / ".agent-lightning" / "logs" / NAME
    return Path(given).expanduser() if str(given) and str(given) != "." else None
