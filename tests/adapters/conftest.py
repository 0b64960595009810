"""What holds for the tests of all adapters: a failing contract says what it compared."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("contract.on_local_engine")
