"""``make readme``: which blocks of the README there are, what is run of each, and what counts as done."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import readme  # noqa: E402

PAGE = """# Title

```sh
make it      # and wait
echo "a # b" \\
  more
```

```python
print(1)
```

```text
1
```
"""


def test_blocks_are_numbered_and_comments_are_not_typed() -> None:
    first, second, third = readme.blocks(PAGE)
    assert (first.number, first.line, first.language) == (1, 3, "sh")
    assert first.commands[0] == "make it" and len(first.commands) == 2
    assert (second.language, second.text, third.language) == ("python", "print(1)\n", "text")


def test_every_block_of_the_readme_is_of_a_known_kind() -> None:
    found = readme.blocks((ROOT / "README.md").read_text())
    assert len(found) >= 3
    assert {block.language for block in found} <= {"sh", "bash", "python", "yaml", *readme.OUTPUT}
    commands = {command for block in found for command in block.commands}
    assert set(readme.SHORTER) <= commands, "a command that is shortened is not on the page"


def test_the_first_block_is_the_main_job_and_the_tests_which_ci_runs_too() -> None:
    first = readme.blocks((ROOT / "README.md").read_text())[0]
    assert {"make demo", "make test"} <= {*first.commands}
    assert "\nmake test ||" in (ROOT / ".ci" / "run").read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def checkout(root: Path, to: Path) -> Path:
        to.mkdir(parents=True)
        return to

    monkeypatch.setattr(readme, "copied", checkout)
    return tmp_path


def outcomes(folder: Path, *blocks: tuple[str, str]) -> list[str]:
    page = "\n".join(f"```{language}\n{text}```\n" for language, text in blocks)
    return [one.why for one in readme.read(readme.blocks(page), folder)]


def test_blocks_run_in_order_in_one_checkout(folder: Path) -> None:
    assert (
        outcomes(folder, ("sh", "echo made > file\n"), ("sh", "cat file\n"), ("text", "made\n")) == [""] * 3
    )


def test_what_fails_is_told_and_what_follows_is_still_tried(folder: Path) -> None:
    first, second, third, fourth = outcomes(
        folder, ("sh", "false\necho never > file\n"), ("python", "raise ValueError('no')\n"),
        ("sh", "test ! -e file\n"), ("ruby", "puts 1\n"),
    )  # fmt: skip
    assert first == "false: status 1: " and "ValueError: no" in second and third == ""
    assert "ruby" in fourth


@pytest.mark.slow
def test_a_block_that_installs_gets_an_empty_environment(folder: Path) -> None:
    said = outcomes(
        folder,
        ("sh", "pip install --quiet --no-index --find-links . 2>/dev/null || true\n"),
        ("python", "import sys\nassert sys.prefix != sys.base_prefix and 'environment-1' in sys.prefix\n"),
    )
    assert said == ["", ""]
