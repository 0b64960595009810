"""The guide to what happened prints what the commands print."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from contract.runs import make_run

from agentlightning import cli

GUIDE = (Path(__file__).parents[4] / "docs" / "stored.md").read_text()
BLOCKS = re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)
FILES = {name: text for text, name in re.findall(r"```python\n(# (\S+)\n.*?)```", GUIDE, re.DOTALL)}


def lines(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a block, each with what it prints."""
    for part in re.split(r"^\$ agl ", block, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        yield command, printed


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    yield tmp_path
    for name in FILES:
        sys.modules.pop(Path(name).stem, None)


async def test_the_commands_of_rescoring(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await make_run(here / "runs")
    for command, printed in lines(BLOCKS[0]):
        monkeypatch.setattr("sys.argv", ["agl", *command.split()])
        with ThreadPoolExecutor(1) as pool, pytest.raises(SystemExit):
            pool.submit(cli.main).result()
        assert capsys.readouterr().out == printed
