"""Run a benchmark and keep what it printed, with the command and the machine, in ``bench/results/NAME.json``.

    python bench/record.py gateway -- python bench/gateway.py --seconds 8

The command's last line of stdout must be one JSON object. What a command prints that then fails (a figure
that misses its bar) is kept too, with its exit status, which is also that of this program.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def machine() -> dict[str, object]:
    """What the figures were taken on."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":")[1].strip()
            for line in info.read_text(encoding="utf-8").splitlines()
            if "model name" in line
        ]
        model = names[0] if names else model
    return {
        "processor": model,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def main() -> int:
    """Run, check, write."""
    name, separator, *command = sys.argv[1:] or [""]
    if not name or separator != "--" or not command:
        print(__doc__, file=sys.stderr)
        return 2
    before = machine()
    run = [sys.executable, *command[1:]] if command[0] == "python" else command
    done = subprocess.run(run, stdout=subprocess.PIPE, encoding="utf-8")
    lines = done.stdout.strip().splitlines()
    if not lines:
        raise SystemExit(f"{shlex.join(command)} ended with {done.returncode} and printed nothing")
    result = json.loads(lines[-1])
    RESULTS.mkdir(exist_ok=True)
    failed = {"exit_status": done.returncode} if done.returncode else {}
    kept = {"command": shlex.join(command), **failed, "machine": before, "result": result}
    (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
