"""The SDK's private method: it is there today, its loss is loud, and the patch leaves no trace."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import openai
import openai._base_client as sdk
import pytest
import wrapt
from contract.capturing import Recording
from contract.model_server import ModelServer
from wrapt.importer import notify_module_loaded

from agentlightning import capture
from agentlightning.capture import COUNTS
from agentlightning.capture.sdk import OPENAI

ASK: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    COUNTS.clear()
    yield
    capture.uninstall()


@pytest.mark.parametrize("client", [sdk.SyncAPIClient, sdk.AsyncAPIClient])
def test_the_installed_sdk_has_what_we_patch(client: type) -> None:
    parameters = list(inspect.signature(vars(client)["request"]).parameters)
    assert parameters[:3] == ["self", "cast_to", "options"]
    assert "retries_taken" in inspect.signature(sdk.BaseClient._build_request).parameters
    assert {"headers", "json_data", "extra_json", "url", "method", "post_parser"} <= set(
        sdk.FinalRequestOptions.model_fields
    )


def test_the_installed_streams_have_what_we_tee() -> None:
    assert "self._iterator" in inspect.getsource(openai.Stream.__init__)
    assert "self._iterator" in inspect.getsource(openai.AsyncStream.__init__)


async def test_without_the_private_method_capture_goes_on_at_the_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved = sdk.AsyncAPIClient.request
    monkeypatch.setattr(sdk.AsyncAPIClient, "request_2", moved, raising=False)
    monkeypatch.delattr(sdk.AsyncAPIClient, "request")
    before = vars(sdk.SyncAPIClient)["request"]
    with pytest.warns(RuntimeWarning, match="gateway only"):
        capture.install()
    assert COUNTS.snapshot() == {"wire-unavailable": 1}
    assert vars(sdk.SyncAPIClient)["request"] is before  # all or nothing
    capture.uninstall()


async def test_without_the_retry_hook_calls_are_recorded_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ModelServer(ids="always") as server:
        recording = Recording("noretry", server.url)
        with monkeypatch.context() as patched:
            patched.delattr(sdk.BaseClient, "_build_request")
            capture.install()
        async with openai.AsyncOpenAI(base_url=server.url, api_key="k") as client:
            with recording.active():
                await client.chat.completions.create(**ASK)
    assert len(recording.calls) == 1
    assert COUNTS.snapshot() == {"wire-retries-unknown": 1}


LATER = """
import sys
from agentlightning import capture

capture.install()
assert "openai" not in sys.modules
import openai
import wrapt
client = openai._base_client.SyncAPIClient
ours = vars(client)["request"]
assert isinstance(ours, wrapt.FunctionWrapper)
capture.install()
assert vars(client)["request"] is ours
capture.uninstall()
assert vars(client)["request"] is ours.__wrapped__
"""


def test_an_sdk_that_is_imported_later_is_patched_then() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", LATER], check=True, timeout=300)


def test_an_sdk_that_is_imported_after_capture_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = vars(sdk.SyncAPIClient)["request"]
    monkeypatch.delitem(sys.modules, "openai")
    capture.install()
    assert vars(sdk.SyncAPIClient)["request"] is before
    capture.uninstall()
    notify_module_loaded(openai)
    assert vars(sdk.SyncAPIClient)["request"] is before


def test_undo_is_complete_and_repeatable() -> None:
    clients = sdk.SyncAPIClient, sdk.AsyncAPIClient
    places = [*((client, "request") for client in clients), (sdk.BaseClient, "_build_request")]
    before = [vars(owner)[name] for owner, name in places]
    for _ in range(3):
        capture.install()
        assert all(vars(o)[n] is not b for (o, n), b in zip(places, before, strict=True))
        capture.uninstall()
        assert all(vars(o)[n] is b for (o, n), b in zip(places, before, strict=True))


async def test_two_instruments_are_one() -> None:
    capture.install()
    capture.install()
    async with ModelServer(ids="always") as server:
        recording = Recording("twice", server.url)
        async with openai.AsyncOpenAI(base_url=server.url, api_key="k") as client:
            with recording.active():
                await client.chat.completions.create(**ASK)
    assert len(recording.calls) == 1


async def test_another_instrumentor_of_the_same_method_keeps_working() -> None:
    seen: list[str] = []

    def foreign(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        seen.append(args[1].url if len(args) > 1 else kwargs["options"].url)
        return wrapped(*args, **kwargs)

    capture.install()
    wrapt.wrap_function_wrapper(sdk.AsyncAPIClient, "request", foreign)
    theirs = vars(sdk.AsyncAPIClient)["request"]
    try:
        async with ModelServer(ids="always") as server:
            recording = Recording("both", server.url)
            async with openai.AsyncOpenAI(base_url=server.url, api_key="k") as client:
                with recording.active():
                    await client.chat.completions.create(**ASK)
                    capture.uninstall()
                    await client.chat.completions.create(**ASK)
        assert vars(sdk.AsyncAPIClient)["request"] is theirs
        assert len(recording.calls) == 1 and len(seen) == 2
        assert not isinstance(theirs.__wrapped__, wrapt.FunctionWrapper)  # ours is out of the chain
    finally:
        sdk.AsyncAPIClient.request = theirs.__wrapped__  # type: ignore[method-assign]


def test_another_version_of_the_sdk_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert OPENAI == "openai >= 1.93, < 4"
    monkeypatch.setattr("agentlightning.capture.installation.OPENAI", "openai < 1")
    before = vars(sdk.SyncAPIClient)["request"]
    capture.install()
    assert capture.installed() and vars(sdk.SyncAPIClient)["request"] is before
    assert "openai < 1" in caplog.text and "gateway only" in caplog.text


def test_the_tested_version_is_instrumented_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capture.install()
    assert isinstance(vars(sdk.SyncAPIClient)["request"], wrapt.FunctionWrapper)


def test_without_the_sdk_capture_installs_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agentlightning.capture.installation.find_spec", lambda name: None)
    caplog.set_level("INFO", logger="agentlightning.capture.installation")
    capture.install()
    assert capture.installed() and not isinstance(vars(sdk.SyncAPIClient)["request"], wrapt.FunctionWrapper)
    assert "gateway only" in caplog.text
    capture.uninstall()
