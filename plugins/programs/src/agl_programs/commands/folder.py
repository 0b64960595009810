"""The working folder of one attempt: temporary, filled with copies, removed or kept at the end."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agentlightning.capture.delivery import COUNTS
from agentlightning.types import UsageError
from agl_programs.sandbox.files import remove

_LOG = logging.getLogger(__name__)


class WorkFolder:
    """``path`` is the program's working folder; ``scratch`` around it holds files that are not the program's.
    ``files``: absolute paths to copy into ``path``. ``keep``: folder in which ``path`` is kept as
    ``<keep>/<attempt>``; ``None``: it is removed.
    """

    def __init__(self, attempt_id: str, files: Sequence[Path], keep: Path | None) -> None:
        self._kept = None if keep is None else keep / attempt_id
        self.scratch = Path(tempfile.mkdtemp(prefix="agl-command-"))
        self.path = self.scratch / "work"
        try:
            self.path.mkdir()
            for file in files:
                self._copy(file)
        except BaseException:
            shutil.rmtree(self.scratch, ignore_errors=True)
            raise

    def _copy(self, source: Path) -> None:
        try:
            if source.is_dir():
                shutil.copytree(source, self.path, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copy2(source, self.path / source.name)
        except (OSError, shutil.Error) as error:
            raise UsageError(f"{source} cannot be copied into the working folder: {error}") from None

    def close(self) -> None:
        """Keep or remove the folder. What cannot be moved or removed is counted as ``folder-left-behind``."""
        try:
            if self._kept is not None:
                self._kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(self.path, self._kept)
        except OSError as error:
            COUNTS.add("folder-left-behind")
            _LOG.warning("the working folder %s was left behind: %s", self.scratch, error)
        else:
            remove(self.scratch)


def located(words: Sequence[str], here: Path, work: Path, *, copied: bool) -> list[str]:
    """Return the words of a command with paths that hold in the working folder ``work``.

    Without copied files, a word that names a file beside the run's description (``here``) becomes its
    absolute path. A program with a slash in its name is looked for in the working folder.
    """
    found = list(words)
    if not copied:
        found = [str(here / word) if _is_file_at(here, word) else word for word in found]
    if os.sep in found[0] and not Path(found[0]).is_absolute():
        found[0] = str(work / found[0])
    return found


def _is_file_at(here: Path, word: str) -> bool:
    try:
        return bool(word) and not word.startswith("-") and (here / word).is_file()
    except (OSError, ValueError):  # no path at all: too long, or with a null byte
        return False
