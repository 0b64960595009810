"""Executes the notebooks of examples/notebooks, each from an empty folder: ``make notebooks``.

    python scripts/notebooks.py            execute all; exit 1 with the cell and the error if one raises
    python scripts/notebooks.py --write    the same, and keep the outputs in the notebooks
    python scripts/notebooks.py prompts    some

The last line is JSON: ``notebooks``, ``cells`` (code cells that were executed), ``ok`` (notebooks that went
through). Kept outputs hold no place of this machine, no time of execution and no colours of a terminal.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "notebooks"
SECONDS = 1800
"""That one cell may take."""
COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
IMAGE = "image/png"


def notebooks(names: list[str]) -> list[Path]:
    """The notebooks of these names, or all."""
    found = sorted(FOLDER.glob("*.ipynb"))
    if missing := set(names) - {one.stem for one in found}:
        raise SystemExit(f"there is no notebook {', '.join(sorted(missing))}")
    return [one for one in found if not names or one.stem in names]


def code_cells(notebook: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The code cells and their numbers, counted from 1 over all cells."""
    return ((number, cell) for number, cell in enumerate(notebook["cells"], 1) if cell["cell_type"] == "code")


def executed(notebook: Any, folder: Path) -> tuple[int, str]:
    """Execute a notebook in ``folder``: how many of its cells were executed, and what went wrong."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    try:
        client.execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        cells = list(code_cells(notebook))
        done = sum(cell["execution_count"] is not None for _, cell in cells)
        number, _ = cells[max(0, done - 1)]
        return done, f"cell {number}: {COLOUR.sub('', str(error)).strip()}"
    return sum(1 for _ in code_cells(notebook)), ""


def cleaned(notebook: Any, folder: Path) -> None:
    """Take out of the outputs what belongs to this machine and this minute."""
    places = sorted({str(folder), str(folder.resolve()), str(ROOT), str(Path.home())}, key=len, reverse=True)

    def plain(text: str) -> str:
        text = COLOUR.sub("", text).replace("\r\n", "\n")
        for place in places:
            text = text.replace(place, "~")
        return "\n".join(line.rstrip() for line in text.split("\n"))

    for _, cell in code_cells(notebook):
        cell["metadata"].pop("execution", None)
        for output in cell["outputs"]:
            if "text" in output:
                output["text"] = plain(output["text"])
            for kind, value in output.get("data", {}).items():
                if kind != IMAGE:
                    output["data"][kind] = plain(value)
    notebook["metadata"]["language_info"] = {"name": "python"}


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="make notebooks", description="Execute the notebooks.")
    parser.add_argument("--write", action="store_true", help="keep the outputs in the notebooks")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    import nbformat

    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ |= {"PATH": programs, "COLUMNS": "100", "NO_COLOR": "1", "AGL_LOG": ""}
    cells = ok = 0
    chosen = notebooks(asked.names)
    for path in chosen:
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory(prefix="agl-notebook-") as place:
            done, wrong = executed(notebook, Path(place))
            cleaned(notebook, Path(place))
        cells, ok = cells + done, ok + (not wrong)
        print(f"{path.name}: {wrong or f'{done} cells'}", file=sys.stderr, flush=True)
        if asked.write and not wrong:
            nbformat.validate(notebook)
            nbformat.write(notebook, path)
    print(json.dumps({"notebooks": len(chosen), "cells": cells, "ok": ok}))
    return int(ok < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
