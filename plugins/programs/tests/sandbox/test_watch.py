"""What a sandbox uses, read from outside: folders that their owner closed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from agl_programs.sandbox import watch

NOBODY = 65534
ENOUGH = 1 << 30


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of a user without rights: ``outer/inner`` holds a megabyte."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        inner = Path(made) / "outer" / "inner"
        inner.mkdir(parents=True)
        (inner / "file").write_bytes(bytes(1 << 20))
        if os.geteuid() == 0:
            for path in (made, inner.parent, inner, inner / "file"):
                os.chown(path, NOBODY, NOBODY)
        yield Path(made)
        for path in (inner.parent, inner):
            path.chmod(0o700)


def size_of(folder: Path, enough: int = ENOUGH) -> int:
    """Count as a user who may not enter what is closed."""
    if os.geteuid():
        return watch.size_of([folder], enough, 100)
    os.seteuid(NOBODY)
    try:
        return watch.size_of([folder], enough, 100)
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("mode", [0, 0o100, 0o200, 0o400])
def test_closed_folders_are_counted_and_stay_closed(folder: Path, mode: int) -> None:
    outer, inner = folder / "outer", folder / "outer" / "inner"
    inner.chmod(mode)
    outer.chmod(mode)
    assert 1 << 20 <= size_of(folder) < 2 << 20
    assert size_of(folder, 1 << 19) > 1 << 19
    assert outer.stat().st_mode & 0o777 == mode
    outer.chmod(0o700)
    assert inner.stat().st_mode & 0o777 == mode


def test_a_folder_that_cannot_be_opened_counts_as_too_much(folder: Path) -> None:
    if os.geteuid():
        pytest.skip("another user's folder is made by root")
    os.chown(folder / "outer" / "inner", 0, 0)
    (folder / "outer" / "inner").chmod(0o700)
    assert size_of(folder) == ENOUGH + 1


def test_no_link_leads_to_what_is_opened(folder: Path) -> None:
    """A command exchanges a closed folder for a link to another, between the look and the change."""
    target = folder / "outer"
    target.chmod(0)
    (folder / "link").symlink_to(target)
    for path in (folder / "link", folder / "link" / "inner", folder / "gone"):
        with pytest.raises(PermissionError):
            watch._change_mode(str(path), lambda mode: 0o777)
    assert target.stat().st_mode & 0o777 == 0
