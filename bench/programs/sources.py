"""Fetches the source packages whose examples are run, each once, into ``.venvs/sources``."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venvs" / "sources"


def source(package: str) -> Path:
    """The unpacked source package ``name==version``. CalledProcessError where pip cannot fetch it."""
    place = FOLDER / package
    if not place.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download"]
            subprocess.run(
                [*command, "--no-deps", "--no-binary", ":all:", "--dest", folder, package],
                stdout=sys.stderr,
                check=True,
            )
            (archive,) = Path(folder).glob("*.tar.gz")
            with tarfile.open(archive) as opened:
                opened.extractall(Path(folder) / "whole", filter="data")
            (inner,) = (Path(folder) / "whole").iterdir()
            shutil.move(inner, place)
    return place
