"""Where the databases lie: in the data of this example, or in that of ``spider``, which holds the others."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from spider.databases import BUNDLED, find
from spider.sql.schema import Table, read

DATA = Path(__file__).resolve().parent / "data"
FOLDERS = (DATA / "database", BUNDLED)


@cache
def file_of(name: str) -> Path:
    """Return the SQLite file of a database. Raise ``FileNotFoundError`` that names the folders."""
    for folder in FOLDERS:
        try:
            return find(name, folder)[0]
        except FileNotFoundError:
            continue
    looked = " and ".join(str(folder) for folder in FOLDERS)
    raise FileNotFoundError(f"there is no database {name!r} in {looked}")


def tables_of(name: str) -> tuple[Table, ...]:
    """Return the tables of a database, in the order in which they were made."""
    return read(file_of(name))
