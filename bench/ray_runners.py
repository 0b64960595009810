"""Runners as actors of a Ray cluster: ``make test-ray``. The last line is JSON."""

from __future__ import annotations

import sys

from counted_tests import run_counted

if __name__ == "__main__":
    sys.exit(run_counted("plugins/ray/tests", "ray"))
