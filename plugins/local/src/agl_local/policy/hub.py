"""Fetching a policy from the Hugging Face hub: its files in Hugging Face layout, or a GGUF file converted.

Invariants: the policy comes into our cache, whole or not at all; its files have the digests that the hub
names for them; no code and no pickle is downloaded.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.filesize import decimal

from agl_local.policy.cache import (
    CachedPolicy,
    FetchError,
    ModelOrigin,
    add_policy,
    locked,
    read_cached,
    without_urls,
)
from agl_local.policy.card import one_line, read_card
from agl_local.policy.convert import convert_gguf
from agl_local.policy.fetch_progress import FetchProgress, fetch_progress
from agl_local.policy.files import sha256_of
from agl_local.policy.gguf import BadModelFile
from agl_local.policy.hub_files import CARD, MODEL, WEIGHTS, HubFile, HubModel, choose_gguf, matches

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

T = TypeVar("T")
_SECONDS = 10.0
"""For the hub's first answer."""


def from_hub(model: HubModel) -> CachedPolicy:
    """Return the model's folder, downloaded if it is not in the cache. Raise :class:`FetchError`."""
    if (known := read_cached(model.folder)) is not None:
        return known
    with fetch_progress() as progress, locked(progress.wait):
        if (known := read_cached(model.folder)) is not None:  # another process has just fetched it
            return known
        return _Download(model, progress).run()


class _Download:
    """The fetching of one model."""

    def __init__(self, model: HubModel, progress: FetchProgress) -> None:
        from huggingface_hub import HfApi  # here: it takes a third of a second

        self._model, self._progress = model, progress
        # The library reads HF_ENDPOINT when it is imported; here it counts when a model is fetched.
        self._api = HfApi(
            endpoint=os.environ.get("HF_ENDPOINT", "").rstrip("/") or None, library_name="agl-local"
        )

    def run(self) -> CachedPolicy:
        self._progress.begin(f"asking the Hugging Face hub for {self._model.repository}")
        commit, files = self._look_up()
        gguf = self._gguf(files)
        wanted = [file for file in files if matches(file.name, CARD if gguf else (*MODEL, *CARD))]
        if gguf is not None:
            wanted.append(gguf)

        def fill(draft: Path) -> ModelOrigin:
            self._download(commit, wanted, draft)
            if gguf is not None:
                self._convert(draft / gguf.name, draft)
            card = read_card(draft / "README.md")
            source = f"Hugging Face hub, {self._model.repository}, commit {commit}"
            return ModelOrigin(
                self._model.given, card.licence, source, gguf.sha256 if gguf else "", card.about
            )

        return add_policy(self._model.folder, fill)

    def _look_up(self) -> tuple[str, list[HubFile]]:
        """Return the newest commit and its files. Raise if a name leads out of its folder."""

        def ask() -> ModelInfo:
            return self._api.model_info(self._model.repository, files_metadata=True, timeout=_SECONDS)

        info = self._asked(ask)
        files = [
            HubFile(one.rfilename, one.size or 0, one.lfs.sha256 if one.lfs else "", one.blob_id or "")
            for one in info.siblings or ()
        ]
        for file in files:
            if ".." in Path(file.name).parts or file.name.startswith("/"):
                raise FetchError(
                    f"{self._model.given}: its repository has a file whose name leads out of its folder, "
                    f"{one_line(file.name)}: nothing of it is downloaded"
                )
        return info.sha or "main", files

    def _gguf(self, files: Sequence[HubFile]) -> HubFile | None:
        """Return the GGUF file to convert; ``None`` for a model that has its weights as safetensors."""
        names = {file.name for file in files}
        if not self._model.file and any(matches(name, WEIGHTS) for name in names):
            if missing := [name for name in ("config.json", "tokenizer.json") if name not in names]:
                raise FetchError(f"{self._model.given}: its repository has no {' and no '.join(missing)}")
            return None
        return choose_gguf(self._model, files)

    def _download(self, commit: str, files: Sequence[HubFile], draft: Path) -> None:
        total = sum(file.size for file in files)
        self._progress.begin(f"downloading {self._model.given}", f"({decimal(total)})")
        with _without_bars(), self._progress.watched(draft, "*", total):
            for file in files:
                self._asked(partial(self._get, commit, file.name, draft))
                self._compare(draft / file.name, file)
        shutil.rmtree(draft / ".cache", ignore_errors=True)  # the library's notes about the download

    def _get(self, commit: str, name: str, draft: Path) -> None:
        self._api.hf_hub_download(self._model.repository, name, revision=commit, local_dir=draft)

    def _compare(self, path: Path, file: HubFile) -> None:
        """Raise if a file is not the one that the hub describes, or if the hub names no digest for it."""
        found, wanted = (sha256_of(path), file.sha256) if file.sha256 else (_git_id(path), file.git)
        name = self._model.given
        if not wanted:
            raise FetchError(f"{name}: the hub names no digest for {one_line(file.name)} to compare it with")
        if found != wanted:
            raise FetchError(
                f"{name}: {one_line(file.name)} has the digest {found}, and the hub says {wanted}: "
                "it is damaged or was exchanged. It was removed, and nothing of it was used. Fetch again"
            )

    def _convert(self, gguf: Path, draft: Path) -> None:
        self._progress.begin(f"converting {self._model.given}")
        try:
            convert_gguf(gguf, draft, self._progress.tensors)
        except BadModelFile as error:
            text = str(error).replace(str(gguf), f"{self._model.repository}:{gguf.relative_to(draft)}")
            raise FetchError(text) from error
        inside = gguf.relative_to(draft)
        gguf.unlink()
        if len(inside.parts) > 1:
            shutil.rmtree(draft / inside.parts[0])

    def _asked(self, ask: Callable[[], T]) -> T:
        """Return what the hub answers. Raise :class:`FetchError` for whatever its library raises."""
        from huggingface_hub.utils import RepositoryNotFoundError

        name = self._model.given
        try:
            return ask()
        except RepositoryNotFoundError:
            raise FetchError(
                f"{name}: the Hugging Face hub has no such model, or it is private or gated. Then accept its "
                "terms on its page, and log in: `hf auth login`, or a token in HF_TOKEN"
            ) from None
        except Exception as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            first = one_line(without_urls(str(error)).strip().partition("\n")[0])
            raise FetchError(
                f"{name}: the Hugging Face hub did not send it: {type(error).__name__}: {first}. Is this "
                "machine online? HF_ENDPOINT names another hub, and a folder that was fetched on another "
                "machine can be copied here and given as the policy"
            ) from None


def _git_id(path: Path) -> str:
    """Return the id that git gives a file's content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@contextmanager
def _without_bars() -> Iterator[None]:
    """Hide the library's own progress bars, which would be drawn over ours."""
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
