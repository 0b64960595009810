"""Fetches the source packages and repositories whose programs are run, each once, into ``.venvs/sources``."""

from __future__ import annotations

import os
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


def repository(url: str, commit: str) -> Path:
    """The files of a public repository at a commit. CalledProcessError where git cannot fetch it."""
    place = FOLDER / f"{url.rpartition('/')[2]}-{commit[:7]}"
    if not place.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            asked = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
            for words in (["clone", "--quiet", url, "whole"], ["-C", "whole", "checkout", "--quiet", commit]):
                subprocess.run(["git", *words], cwd=folder, env=asked, stdout=sys.stderr, check=True)
            shutil.move(Path(folder) / "whole", place)
    return place
