"""The only cells that may fail, each with its reason in the framework. An excused test that passes fails.

An excuse names the framework's folder, the versions it holds for, part of the test's id, and why it is not
ours to mend, with where the framework's authors say so.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import NamedTuple

import pytest
from contract.frameworks import FRAMEWORKS, folder_of
from packaging.specifiers import SpecifierSet


class Excuse(NamedTuple):
    """Tests of ``folder`` whose id holds ``test`` may fail while the framework is one of ``versions``."""

    folder: str
    versions: str
    test: str
    reason: str


EXCUSES: tuple[Excuse, ...] = ()


def excuse_of(item: pytest.Item) -> Excuse | None:
    """What excuses this test here, if anything does."""
    folder = folder_of(item.path)
    if folder is None or not EXCUSES:
        return None
    installed = version(FRAMEWORKS[folder][1])
    for excuse in EXCUSES:
        of_this = excuse.folder == folder and excuse.test in item.nodeid
        if of_this and SpecifierSet(excuse.versions).contains(installed, prereleases=True):
            return excuse
    return None
