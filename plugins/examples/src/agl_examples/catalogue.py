"""The catalogue of examples (``examples.toml``): what each shows, which files and distributions it needs.

A name of the catalogue is what ``agl example`` takes. An entry's files include what it imports from other
examples, so that a copy is whole.
"""

from __future__ import annotations

import os
import shutil
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

import msgspec
from packaging.requirements import Requirement

from agentlightning.types import UsageError

_PACKAGE = Path(__file__).parent
_CHECKOUT = _PACKAGE.parents[3] / "examples"


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the catalogue."""

    about: str
    files: tuple[str, ...]
    """Folders and files under ``examples/``."""
    requires: tuple[str, ...] = ()
    """Distributions as in a ``pip install``, with the extras that bring the framework."""
    run: tuple[str, ...] = ()
    """The command that runs it in a copy; empty: its README says how to use it."""
    environment: tuple[str, ...] = ()
    """Environment variables that the command needs."""
    program: str | None = None
    """A program on PATH that the command needs."""

    def missing(self) -> list[str]:
        """Return the requirements, variables and programs that are not here."""
        wanted = [text for text in self.requires if not _installed(Requirement(text))]
        wanted += [f"${name}" for name in self.environment if not os.environ.get(name)]
        if self.program is not None and shutil.which(self.program) is None:
            wanted.append(self.program)
        return wanted


def files_folder() -> Path:
    """Return the folder of the examples: inside the installed package, or in the checkout.

    Raises:
        UsageError: The package was built without its files.
    """
    for folder in (_PACKAGE / "files", _CHECKOUT):
        if (folder / "examples.toml").is_file():
            return folder
    raise UsageError(f"agl-examples has no files in {_PACKAGE / 'files'}: install its wheel again")


@cache
def catalogue() -> dict[str, Example]:
    """Return the examples by name, in the order of ``examples.toml``."""
    text = (files_folder() / "examples.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Example])


def find_example(name: str) -> Example:
    """Return an example by its name.

    Raises:
        UsageError: There is none; the message lists all names.
    """
    found = catalogue().get(name)
    if found is None:
        raise UsageError(f"there is no example {name!r}; there are {', '.join(catalogue())}")
    return found


def copy_example(name: str, folder: Path) -> list[Path]:
    """Copy an example and what it imports to ``folder``/examples; return what was copied.

    A file of a shared folder that is already there with the same content stays.

    Raises:
        UsageError: A file that is there has another content. Nothing was written then.
    """
    source, target = files_folder(), folder / "examples"
    pairs = [(path, target / path.relative_to(source)) for path in _files(source, find_example(name))]
    changed = [str(new) for old, new in pairs if new.exists() and new.read_bytes() != old.read_bytes()]
    if changed:
        raise UsageError(
            f"{changed[0]} is there and differs from the example's file"
            + (f", and {len(changed) - 1} more" if changed[1:] else "")
            + "; copy to another folder, or remove what may be replaced"
        )
    for old, new in pairs:
        new.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(old, new)
        new.chmod(old.stat().st_mode & 0o777)
    return [new for _, new in pairs]


def _files(source: Path, example: Example) -> list[Path]:
    """Return the files of an example, without what Python compiled."""
    found: list[Path] = []
    for name in example.files:
        path = source / name
        if path.is_file():
            found.append(path)
        for folder, _, names in os.walk(path):
            if "__pycache__" not in Path(folder).parts:
                found += [Path(folder, one) for one in sorted(names)]
    return found


def _installed(requirement: Requirement) -> bool:
    """Say whether a distribution is here, with what each of the extras that are asked for brings."""
    try:
        distribution = metadata.distribution(requirement.name)
    except metadata.PackageNotFoundError:
        return False
    if requirement.specifier and not requirement.specifier.contains(distribution.version, prereleases=True):
        return False
    brought = [Requirement(line) for line in distribution.requires or ()]
    return all(_installed(one) for extra in requirement.extras for one in brought if _is_of(one, extra))


def _is_of(requirement: Requirement, extra: str) -> bool:
    """Say whether a distribution requires this for the extra alone."""
    marker = requirement.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})
