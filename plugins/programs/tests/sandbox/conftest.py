"""The tests of this folder need bubblewrap, and namespaces that this machine allows."""

from __future__ import annotations

import sys

import pytest
from agl_programs.sandbox import bubblewrap

from agentlightning.types import UsageError


@pytest.fixture
def bwrap() -> None:
    """Skip where no sandbox can be made; `make test-sandbox` fails there."""
    if sys.platform != "linux":
        pytest.skip("bubblewrap is for Linux")
    try:
        bubblewrap.check()
    except UsageError as error:
        pytest.skip(str(error))
