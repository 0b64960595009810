"""Where the databases are: a task names one (``db_id``) and, unless it is bundled, the folder it lies in
(``folder``).

A folder holds ``NAME.sqlite``, or a folder ``NAME`` with one file or several; of several, the agent works on
the first and the reward looks at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

BUNDLED = Path(__file__).resolve().parent / "data" / "database"


def databases_of(task: Mapping[str, Any]) -> list[Path]:
    """The files of a task's database, at least one."""
    return list(find(task["db_id"], Path(task["folder"]) if task.get("folder") else BUNDLED))


@lru_cache(maxsize=4096)
def find(name: str, folder: Path = BUNDLED) -> tuple[Path, ...]:
    """The files of the database ``name``; ``FileNotFoundError`` says where they were looked for."""
    if not name or Path(name).name != name or name in (".", ".."):
        raise ValueError(f"{name!r} is no name of a database")
    single = folder / f"{name}.sqlite"
    found = sorted((folder / name).glob("*.sqlite"), key=lambda path: (path.stem != name, path.name))
    if not found and single.is_file():
        found = [single]
    if not found:
        raise FileNotFoundError(
            f"there is no database {name!r}: neither {single} nor {folder / name}/*.sqlite"
        )
    return tuple(found)
