"""``agl`` commands that a demo runs one after another, each printed before it runs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent


class Commands:
    """Runs ``agl`` commands and adds up their seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def agl(self, stage: str, *words: str, allowed: Sequence[int] = ()) -> str:
        """Run a command and return the last line of its stdout. Its stderr is this process's.

        Exit with its status if that is neither 0 nor one of ``allowed``.
        """
        print(f"$ agl {shlex.join(words)}", file=sys.stderr, flush=True)
        path = os.pathsep.join(filter(None, [str(EXAMPLES), os.environ.get("PYTHONPATH")]))
        began = time.perf_counter()
        done = subprocess.run(
            [str(Path(sys.executable).parent / "agl"), *words],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        self.seconds[stage] = round(self.seconds.get(stage, 0.0) + time.perf_counter() - began, 1)
        if done.returncode not in (0, *allowed):
            raise SystemExit(done.returncode)
        return done.stdout.strip().splitlines()[-1]
