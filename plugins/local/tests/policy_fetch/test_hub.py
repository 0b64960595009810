"""Fetching from the Hugging Face hub, by the real client, from a server on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentlightning.plugins.manager import load as load_plugins
from agentlightning.train.policies import fetch_pretrained
from agl_local.policy import fetch_progress
from agl_local.policy.fetch import FetchError, fetch, first_use
from agl_local.policy.folder import load_policy
from plugins.local.tests.policy_fetch import hub_server
from plugins.local.tests.policy_fetch.gguf_writer import write_policy
from plugins.local.tests.policy_fetch.hub_server import COMMIT, FakeHub, hub

MODEL, QUANTISED = "someone/some-model", "someone/some-model-GGUF"
CARD = "---\nlicense: apache-2.0\n---\n# Some model\n\nIt answers questions about the weather.\n"


@pytest.fixture
def server(place, monkeypatch, policy_dir) -> Iterator[FakeHub]:
    """The hub, which has a model in Hugging Face layout."""
    with hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", f"{running.url}/")
        files = {path.name: path.read_bytes() for path in policy_dir.iterdir() if path.is_file()}
        others = {"README.md": CARD.encode(), "LICENSE": b"Do what you want."}
        unwanted = ("modeling_some.py", "pytorch_model.bin", "onnx/config.json", "consolidated.safetensors")
        running.models[MODEL] = files | others | dict.fromkeys(unwanted, b"unwanted")
        yield running


@pytest.fixture
def quantised(server, tmp_path) -> dict[str, bytes]:
    """The GGUF files of a model without safetensors."""
    gguf = write_policy(tmp_path / "source.gguf", kind="Q8_0").read_bytes()
    files = {"some-Q8_0.gguf": gguf, "some-Q4_K_M.gguf": b"unreadable", "README.md": CARD.encode()}
    server.models[QUANTISED] = files
    return files


def left(place: Path) -> list[str]:
    """What lies in the place of fetched policies, besides its lock."""
    return sorted(path.name for path in place.iterdir() if path.name != ".lock")


# ------------------------------------------------------------------------------------------------- a model
def test_a_model_comes_into_the_cache(server, place, policy_dir, agl, monkeypatch):
    found = fetch(MODEL)
    assert found.path.parent == place and left(place) == [found.path.name]
    names = {path.name for path in policy_dir.iterdir()} | {"README.md", "LICENSE", "origin.json"}
    assert {
        path.name for path in found.path.iterdir()
    } == names  # no code, no pickle, no notes of the library
    assert (found.path / "model.safetensors").read_bytes() == (policy_dir / "model.safetensors").read_bytes()
    assert load_policy(found.path).model
    assert found.origin.source == f"Hugging Face hub, {MODEL}, commit {COMMIT}"
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert fetch(MODEL).path == found.path  # without network


@pytest.mark.plugins
def test_a_configuration_names_it(server, place):
    """As ``backend.policy: hub:owner/name``; without the prefix it is a folder, and nobody is asked."""
    found = fetch_pretrained(f"hub:{MODEL}", load_plugins())
    assert found is not None and found.parent == place.resolve() and load_policy(found).model
    assert fetch(f"hub:{MODEL}").path.resolve() == found
    assert fetch_pretrained(MODEL, load_plugins()) is None


def test_the_command_prints_licence_and_card(server, agl):
    done = agl("fetch", MODEL)
    assert done.exit_code == 0, done.exception
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"model    {MODEL}", "licence  apache-2.0"]
    assert lines[3] == "about    It answers questions about the weather." and Path(lines[-1]).is_dir()


def test_list_and_clear_see_it(server, agl, place):
    folder = fetch(MODEL).path
    listed = agl("list").stdout
    assert MODEL in listed and folder.name in listed and "apache-2.0" in listed
    assert f"removed {folder}" in agl("clear", MODEL).stdout
    assert left(place) == [] and MODEL not in agl("list").stdout


def test_first_use_says_once_what_it_is(server, capfd):
    folder = first_use(MODEL).path
    said = capfd.readouterr()
    assert "downloading someone/some-model (" in said.err and "licence  apache-2.0\n" in said.err
    assert said.err.endswith(f"{folder}\n") and said.out == ""
    assert first_use(MODEL).path == folder and capfd.readouterr() == ("", "")


def test_bytes_are_shown_while_they_come(server, monkeypatch, capfd):
    monkeypatch.setattr(fetch_progress, "SECONDS", 0.0)
    monkeypatch.setattr(fetch_progress, "_LOOK", 0.01)
    server.models[MODEL]["model.safetensors"] += bytes(22_000_000)
    server.half = threading.Event()
    timer = threading.Timer(0.3, server.half.set)
    timer.start()
    fetch(MODEL)
    timer.join()
    said = capfd.readouterr().err.splitlines()
    assert f"downloading {MODEL} (22.2 MB)" in said
    assert f"downloading {MODEL}: 10.5 MB of 22.2 MB" in said  # the client writes 10 MiB at a time


# ------------------------------------------------------------------------------------------ what goes wrong
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_another_file_than_the_hub_describes_is_refused(server, place, name):
    server.sent[name] = bytes(reversed(server.models[MODEL][name]))
    with pytest.raises(FetchError, match=rf"some-model: {name} has the digest \w+, and the hub says \w+:"):
        fetch(MODEL)
    assert left(place) == []
    server.sent.clear()
    assert load_policy(fetch(MODEL).path).model


def test_a_connection_that_breaks_off_is_taken_up_again(server, policy_dir, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # the client waits a second before
    server.breaks["model.safetensors"] = 1
    found = fetch(MODEL)
    assert (found.path / "model.safetensors").read_bytes() == (policy_dir / "model.safetensors").read_bytes()
    assert server.breaks["model.safetensors"] == 0


def test_a_connection_that_stays_broken_leaves_nothing(server, place, monkeypatch):
    def closed(seconds: float) -> None:
        server.models[MODEL] = {}  # the storage answers no more
        server.sent["model.safetensors"] = b""

    monkeypatch.setattr(time, "sleep", closed)
    server.breaks["model.safetensors"] = 1000
    with pytest.raises(FetchError, match=r"some-model: the Hugging Face hub did not send it: .* online\?"):
        fetch(MODEL)
    assert left(place) == []


def test_offline_is_one_clear_error(place, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        FetchError, match=r"did not send it: Connect\w+: .*Is this machine online\?"
    ) as caught:
        fetch(MODEL)
    assert "\n" not in str(caught.value) and left(place) == []


def test_an_unknown_and_a_gated_model(server, place):
    server.gated.add("someone/gated")
    for name in ("nobody/nothing", "someone/gated"):
        with pytest.raises(
            FetchError, match=f"{name}: the Hugging Face hub has no such model, or .* HF_TOKEN"
        ):
            fetch(name)
    assert left(place) == []


def test_a_model_without_weights_or_tokenizer(server, place):
    del server.models[MODEL]["tokenizer.json"]
    with pytest.raises(FetchError, match=r"its repository has no tokenizer.json"):
        fetch(MODEL)
    server.models[MODEL] = {"config.json": b"{}"}
    with pytest.raises(FetchError, match=r"neither weights as safetensors nor a GGUF file"):
        fetch(MODEL)
    assert not [path for _, path in server.asked if "/resolve/" in path] and left(place) == []


# ------------------------------------------------------------------------------------------------ GGUF files
def test_the_only_file_that_converts_is_converted(server, quantised, place):
    found = fetch(QUANTISED)
    assert load_policy(found.path).model and left(place) == [found.path.name]
    assert not list(found.path.rglob("*.gguf")) and (found.path / "README.md").is_file()
    assert (found.origin.name, found.origin.licence) == (QUANTISED, "apache-2.0")
    assert len(found.origin.sha256) == 64


def test_one_of_several_files_is_chosen_by_name(server, quantised, place):
    quantised["half/some-f16.gguf"] = quantised["some-Q8_0.gguf"]
    with pytest.raises(
        FetchError, match=r"choose one .*: some-Q8_0.gguf \(.* half/some-f16.gguf \(.*agl policy"
    ):
        fetch(QUANTISED)
    found = fetch(f"{QUANTISED}:half/some-f16.gguf")
    assert load_policy(found.path).model and found.origin.name == f"{QUANTISED}:half/some-f16.gguf"
    assert not (found.path / "half").exists()
    with pytest.raises(FetchError, match="choose one"):
        fetch(f"{QUANTISED}:none.gguf")


@pytest.mark.parametrize("name", ["../../evil-f16.gguf", "/evil.json"])
def test_a_model_whose_files_lead_out_of_its_folder_is_refused(server, quantised, place, name):
    quantised[name] = b"{}"
    with pytest.raises(FetchError, match=rf"leads out of its folder, {name}: nothing of it is downloaded"):
        fetch(QUANTISED)
    assert not [path for _, path in server.asked if "/resolve/" in path] and left(place) == []


def test_a_file_without_a_digest_is_refused(server, place, monkeypatch):
    monkeypatch.setattr(hub_server, "git_id", lambda content: "")
    with pytest.raises(FetchError, match=r"the hub names no digest for \S+json to compare"):
        fetch(MODEL)
    assert left(place) == []


def test_a_file_that_cannot_be_converted_is_named_by_its_model(server, quantised, place):
    quantised["some-Q8_0.gguf"] = bytes(100)
    with pytest.raises(FetchError, match=rf"^{QUANTISED}:some-Q8_0.gguf: not a GGUF file"):
        fetch(QUANTISED)
    assert left(place) == []


def test_files_of_other_kinds_are_not_downloaded(server, quantised, place):
    del quantised["some-Q8_0.gguf"]
    quantised |= dict.fromkeys(("a-f16-00001-of-00002.gguf", "mmproj-some-f16.gguf", "b.IQ2_XS.gguf"), b"x")
    with pytest.raises(FetchError, match=r"none of its GGUF files .*: some-Q4_K_M.gguf, .* F32, F16, Q4_0"):
        fetch(f"{QUANTISED}:some-Q4_K_M.gguf")
    assert not [path for _, path in server.asked if "/resolve/" in path]
