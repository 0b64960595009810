"""Files of runs on S3, by a server that answers as S3 does: ``make test-storage``; the last line is JSON."""

from __future__ import annotations

import sys

from counted_tests import run_counted

if __name__ == "__main__":
    sys.exit(run_counted("tests/plugins/cluster/storage", "moto", "s3fs"))
