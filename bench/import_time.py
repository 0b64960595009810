"""Start-up times of `agentlightning`, and with --install the size of `pip install ./core`, as a JSON object.

    python bench/import_time.py              # of `import agentlightning`, of its Trainer, of `agl --help`
    python bench/import_time.py --install    # also: a fresh environment, its packages, seconds and megabytes

Sizes are those of the files pip wrote (1 MB = 10^6 bytes): `installed_mb` without the __pycache__ it
compiles, `with_bytecode_mb` with it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

CORE = Path(__file__).resolve().parents[1] / "core"
PRESENT = {"pip", "setuptools"}
"""What a fresh environment holds before anything is installed."""


def seconds(command: Sequence[Path | str], runs: int) -> float:
    """Median wall seconds of a process."""
    taken = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])  # the first run fills the caches


def start_times(python: Path, runs: int) -> dict[str, float]:
    """Seconds of an import with and without the interpreter's own start, of the name that loads the training,
    and of the help with the plugins that the environment has.
    """
    bare, whole, trainer = (
        seconds([python, "-c", statement], runs)
        for statement in ("pass", "import agentlightning", "from agentlightning import Trainer")
    )
    return {
        "import_seconds": round(whole - bare, 4),
        "process_seconds": round(whole, 4),
        "trainer_seconds": round(trainer, 4),
        "help_seconds": round(seconds([python.with_name("agl"), "--help"], runs), 4),
    }


def install_size() -> dict[str, float]:
    """Install the core into a fresh environment and weigh what was written."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")
        start = time.perf_counter()
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(CORE)], check=True, stdout=sys.stderr)
        taken = time.perf_counter() - start
        site = next(Path(folder).glob("lib/python*/site-packages"))
        found = [d for d in distributions(path=[str(site)]) if d.name not in PRESENT]
        files = [Path(str(d.locate_file(f))) for d in found for f in d.files or ()]
        sizes = {f: f.stat().st_size for f in files if f.is_file()}
        plain = sum(size for f, size in sizes.items() if f.suffix != ".pyc")
        return {
            "packages": len(found),
            "install_seconds": round(taken, 1),
            "installed_mb": round(plain / 1e6, 1),
            "with_bytecode_mb": round(sum(sizes.values()) / 1e6, 1),
            **{f"fresh_{k}": v for k, v in start_times(python, 5).items()},
        }


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--install", action="store_true")
    options = parser.parse_args()
    figures: dict[str, float | str] = {
        "python": sys.version.split()[0],
        **start_times(Path(sys.executable), options.runs),
    }
    if options.install:
        figures |= install_size()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
