"""The guide to audit prints what the commands print, of the run that these tests make."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from contract.runs import edit_reward, make_run

from agentlightning import cli
from agentlightning.store.sql import leases

GUIDE = Path(__file__).parents[3] / "docs" / "audit.md"
EXAMPLES = re.findall(r"```console\n\$ agl (.*?)\n(.*?)```", GUIDE.read_text(), re.DOTALL)
HEAD = re.compile("head [0-9a-f]{64}")
"""It depends on the versions that are installed."""


@pytest.fixture
async def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The guide's run, with attempt ids that a page can show."""
    numbers = itertools.count(1)
    monkeypatch.setattr(leases, "time_ordered_id", lambda prefix: f"{prefix}-{next(numbers):04}")
    monkeypatch.chdir(tmp_path)
    return await make_run(tmp_path / "runs")


@pytest.mark.parametrize(("command", "expected"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
async def test_an_example(
    example: Path,
    command: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    in_thread: Callable[..., None],
) -> None:
    words, _, comment = command.partition("  # ")
    if comment:
        assert comment == "after the reward of ro-0-2 was set to 0.0"
        await edit_reward(example, "ro-0-2", 0.0)
    monkeypatch.setattr("sys.argv", ["agl", *words.split()])
    in_thread(cli.main)
    assert HEAD.sub("head …", capsys.readouterr().out) == HEAD.sub("head …", expected)


@pytest.fixture
def in_thread() -> Callable[..., None]:
    """Runs a command that brings its own event loop beside the test's."""
    from concurrent.futures import ThreadPoolExecutor

    def run(function: Callable[[], None]) -> None:
        with ThreadPoolExecutor(1) as pool, pytest.raises(SystemExit):
            pool.submit(function).result()

    return run
