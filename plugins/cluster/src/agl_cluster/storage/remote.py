"""Snapshots of a run's folder in object storage.

``<place>/<run>/000003-step-12/…`` holds the files that the third snapshot brought, under their names in the
run's folder, and ``MANIFEST.json``: every file of the run then, with its size, its sha256 and the key of the
object that holds it, which an earlier snapshot may have brought. The manifest is written last. Invariants: a
snapshot without a manifest does not exist; what is fetched is what was kept, by its sha256, or nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentlightning.types import UsageError

MANIFEST = "MANIFEST.json"
FORMAT = "agl-snapshot/1"
_NAME = re.compile(r"(\d{6,})-(?:step-\d+|end)")


class StorageError(UsageError):
    """Object storage that cannot be used, or a snapshot that cannot be trusted; the message says which."""


class KeptFile(msgspec.Struct, frozen=True):
    """A file of a snapshot: the object that holds it, its bytes and their sha256."""

    key: str
    size: int
    sha256: str


class Snapshot(msgspec.Struct):
    """A manifest. ``name``: its folder; ``step``: finished steps of its checkpoint, ``None`` at the end."""

    format: str
    run: str
    name: str
    step: int | None
    files: dict[str, KeptFile]


class RemoteRun:
    """The snapshots of one run. Its methods block: they are called in threads."""

    def __init__(self, place: str, run_id: str) -> None:
        self.place, self.run_id = place.rstrip("/"), run_id
        self.fs, root = open_place(self.place)
        self.root = f"{root.rstrip('/')}/{run_id}"
        self._local = "file" in self.fs.protocol

    def check(self) -> None:
        """Raise :class:`StorageError` if the place cannot be read."""
        try:
            bucket = self.root.partition("/")[0]
            there = self._local or self.fs.exists(bucket)
            self._names()
        except Exception as error:  # each file system has its own
            raise StorageError(
                f"AGL_STORAGE={self.place}: it cannot be read ({describe(error)}); check the name, the "
                "credentials and the network, or unset it"
            ) from error
        if not there:
            raise StorageError(f"AGL_STORAGE={self.place}: there is no bucket {bucket}; make it first")

    def newest(self) -> Snapshot | None:
        """Return the newest complete snapshot."""
        for name in reversed(self._names()):
            if (found := self._manifest(name)) is not None:
                return found
        return None

    def next_name(self, step: int | None) -> str:
        """Return the name of the next snapshot, also after one that broke off."""
        names = self._names()
        number = int(names[-1].partition("-")[0]) + 1 if names else 1
        return f"{number:06d}-{'end' if step is None else f'step-{step}'}"

    def put(self, name: str, relative: str, file: Path) -> KeptFile:
        """Upload one file of a snapshot; the object is whole or not there."""
        key = f"{self.root}/{name}/{relative}"
        self._make_folder(key)
        self.fs.put_file(str(file), key)
        size = file.stat().st_size
        if (there := int(self.fs.info(key, refresh=True)["size"])) != size:
            raise OSError(f"{key} has {there} bytes after the upload of {size}")
        return KeptFile(key, size, sha256_of(file))

    def commit(self, snapshot: Snapshot) -> None:
        """Write the manifest: from now on the snapshot exists."""
        key = f"{self.root}/{snapshot.name}/{MANIFEST}"
        self._make_folder(key)
        self.fs.pipe_file(key, msgspec.json.encode(snapshot))

    def prune(self, keep: int = 2) -> int:
        """Delete the objects that the newest ``keep`` snapshots do not need; return their number."""
        names = self._names()
        kept = [found for name in names if (found := self._manifest(name)) is not None][-keep:]
        if not kept:
            return 0
        needed = {file.key for one in kept for file in one.files.values()}
        needed |= {f"{self.root}/{one.name}/{MANIFEST}" for one in kept}
        newer = {name for name in names if name > kept[-1].name}  # one that is being written
        there = [str(key) for key in self.fs.find(self.root)]
        old = [key for key in there if key not in needed and not newer & {*key.split("/")}]
        manifests = [key for key in old if key.endswith(f"/{MANIFEST}")]
        for key in [*manifests, *(key for key in old if key not in manifests)]:  # its files go after it
            self.fs.rm_file(key)
        return len(old)

    def fetch(self, snapshot: Snapshot, folder: Path) -> None:
        """Bring a snapshot's files into the new folder ``folder``, which is there whole or not at all."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as draft:
            for relative, kept in snapshot.files.items():
                target = _inside(Path(draft), relative)
                target.parent.mkdir(parents=True, exist_ok=True)
                self.fs.get_file(kept.key, str(target))
                if (found := sha256_of(target)) != kept.sha256:
                    raise StorageError(
                        f"{self.place}: {kept.key} is not what was kept (sha256 {found[:12]}…, not "
                        f"{kept.sha256[:12]}…): the snapshot {snapshot.name} is damaged"
                    )
            shutil.copytree(draft, folder)

    def _make_folder(self, key: str) -> None:
        if self._local:  # object storage has none
            self.fs.makedirs(key.rpartition("/")[0], exist_ok=True)

    def _names(self) -> list[str]:
        """Return the names of all snapshots, broken ones too, oldest first."""
        self.fs.invalidate_cache()
        try:
            found = self.fs.ls(self.root, detail=False)
        except FileNotFoundError:
            return []
        names = [str(key).rstrip("/").rsplit("/", 1)[-1] for key in found]
        return sorted(name for name in names if _NAME.fullmatch(name))

    def _manifest(self, name: str) -> Snapshot | None:
        try:
            body = self.fs.cat_file(f"{self.root}/{name}/{MANIFEST}")
        except FileNotFoundError:
            return None
        try:
            found = msgspec.json.decode(body, type=Snapshot)
        except msgspec.DecodeError as error:
            raise StorageError(
                f"{self.place}: the manifest of {self.run_id}/{name} is damaged: {error}"
            ) from None
        return found if found.format == FORMAT else None


def open_place(place: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it. :class:`StorageError` without its library."""
    scheme = place.partition("://")[0]
    try:
        from fsspec.core import url_to_fs

        fs, root = url_to_fs(place)
    except ImportError as error:
        libraries = {"s3": "s3fs (the extra s3 of agl-cluster)", "gs": "gcsfs", "gcs": "gcsfs"}
        library = libraries.get(scheme, "adlfs" if scheme in ("az", "abfs") else "fsspec")
        raise StorageError(f"AGL_STORAGE={place}: install {library}: {error}") from None
    return fs, str(root)


def sha256_of(file: Path) -> str:
    """Return the sha256 of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def describe(error: BaseException) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _inside(folder: Path, relative: str) -> Path:
    """Return ``folder/relative``, which must not lead out of the folder."""
    target = (folder / relative).resolve()
    if not target.is_relative_to(folder.resolve()):
        raise StorageError(f"a manifest names {relative!r}, which lies outside the run")
    return target


def written(counts: Mapping[str, int], place: str) -> str:
    """Return the accounts of a run's snapshots as JSON."""
    return json.dumps({"place": place, **counts}, indent=2) + "\n"
