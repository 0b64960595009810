"""vLLM as the engine, before a scripted one: the door, the flags, the way of the weights, what is refused.

What a real vLLM makes of it: ``make test-vllm-engine``.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentlightning.types import Batch, Recipe
from agentlightning.types.work import PolicyFolder
from agl_local.driver import LocalDriver
from agl_local.generation.request import EngineError
from agl_local.http.engines import Engines
from agl_local.http.vllm_child import Door
from agl_local.http.vllm_engine import Vllm, VllmEngine, for_vllm
from agl_local.network.lora import Lora, adapt, adapted, peft_config, peft_settings, targets_of
from agl_local.option_values import OptionError
from agl_local.options import Options, read_options
from agl_local.policy.folder import Policy, init_model, save_policy, state
from agl_local.policy.shared import SharedWeights
from agl_local.serving import LocalServer, Refused, make_engines
from agl_local.text.tokenizer import ChatTokenizer
from plugins.local.tests.driver_fixtures import saved_policy, tiny_config, tiny_policy, tiny_tokenizer
from plugins.local.tests.engine_fixtures import small_config
from plugins.local.tests.test_process import is_running

KEY = "the key of a run's engine, long enough"
LORA = Lora(rank=2, alpha=8)


# ------------------------------------------------------------------------------------------------- the door
class Inside:
    """The app behind a door: it sends ``messages`` once ``go`` is set."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = messages
        self.go = asyncio.Event()
        self.go.set()
        self.paths: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])
        await self.go.wait()
        for message in self.messages:
            await send(dict(message))


def whole(body: bytes, status: int = 200, kind: bytes = b"application/json") -> list[dict[str, Any]]:
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    start = {"type": "http.response.start", "status": status, "headers": headers}
    return [start, {"type": "http.response.body", "body": body}]


async def asked(door: Door, path: str, key: str = KEY, kind: str = "http") -> list[dict[str, Any]]:
    path, _, query = path.partition("?")
    headers = [(b"authorization", f"Bearer {key}".encode())]
    scope = {"type": kind, "path": path, "query_string": query.encode(), "headers": headers}
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    await door(scope, receive, send)
    return sent


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Door, "key", KEY)


@pytest.mark.usefixtures("keyed")
async def test_who_has_not_the_key_reaches_health_and_counts_alone() -> None:
    inside = Inside(*whole(b"{}"))
    door = Door(inside)
    for path in ("/v1/completions", "/collective_rpc", "/sleep", "/agl/close", "/agl/open", "/v1/models"):
        assert (await asked(door, path, "another"))[0]["status"] == 401
    assert not inside.paths
    assert await asked(door, "/v1/completions", "another", kind="websocket") == []
    for path in ("/health", "/metrics"):
        assert (await asked(door, path, "another"))[0]["status"] == 200
    assert (await asked(door, "/sleep"))[0]["status"] == 200 and inside.paths[-1] == "/sleep"


async def test_without_a_key_the_door_is_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Door, "key", "")
    assert (await asked(Door(Inside(*whole(b"{}"))), "/v1/models", ""))[0]["status"] == 401


@pytest.mark.usefixtures("keyed")
async def test_a_closed_door_lets_calls_under_way_end_and_others_wait() -> None:
    inside = Inside(*whole(b'{"id":"x"}'))
    door = Door(inside)
    inside.go.clear()
    first = asyncio.create_task(asked(door, "/v1/chat/completions"))
    await asyncio.sleep(0)
    closing = asyncio.create_task(asked(door, "/agl/close"))
    await asyncio.sleep(0)
    second = asyncio.create_task(asked(door, "/v1/chat/completions"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not closing.done() and inside.paths == ["/v1/chat/completions"]
    inside.go.set()
    await closing
    assert (await first)[1]["body"] == b'{"policy_version":0,"id":"x"}'
    assert not second.done()
    await asked(door, "/agl/open?version=7")
    assert (await second)[1]["body"] == b'{"policy_version":7,"id":"x"}'
    await asked(door, "/agl/close")
    await asked(door, "/agl/open")  # as after a sleep
    assert (await asked(door, "/v1/completions"))[1]["body"] == b'{"policy_version":7,"id":"x"}'


@pytest.mark.usefixtures("keyed")
async def test_answers_and_events_say_their_version_and_errors_nothing() -> None:
    head, body = await asked(Door(Inside(*whole(b'{"a":{"b":1}}'))), "/v1/completions")
    assert json.loads(body["body"]) == {"policy_version": 0, "a": {"b": 1}}
    assert dict(head["headers"])[b"content-length"] == b"%d" % len(body["body"])
    for status, kind in ((400, b"application/json"), (200, b"text/plain")):
        assert await asked(Door(Inside(*whole(b"{1}", status, kind))), "/v1/completions") == whole(
            b"{1}", status, kind
        )
    start = {
        "type": "http.response.start", "status": 200,
        "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
    }  # fmt: skip
    events = [b'data: {"c":"data: {"}\n\n', b'data: {"d":1}\n\ndata: {"e":2}\n\n', b"data: [DONE]\n\n"]
    parts = [{"type": "http.response.body", "body": event, "more_body": True} for event in events]
    _, *sent = await asked(Door(Inside(start, *parts)), "/v1/chat/completions")
    marked = b"".join(part["body"] for part in sent)
    assert marked == (
        b'data: {"policy_version":0,"c":"data: {"}\n\ndata: {"policy_version":0,"d":1}\n\n'
        b'data: {"policy_version":0,"e":2}\n\ndata: [DONE]\n\n'
    )


# -------------------------------------------------------------------------------- the process and its weights
@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path of imports on which the scripted one is vLLM."""
    place = tmp_path / "site" / "vllm" / "entrypoints" / "launchers" / "api_server"
    place.mkdir(parents=True)
    (place / "entry.py").write_text("from scripted_vllm import main as main\n")
    path = [str(tmp_path / "site"), str(Path(__file__).parent)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setenv("AGL_SECRET_TOKEN", "a secret of the run")
    return tmp_path


def engine_of(path: Path, **more: Any) -> Engines:
    weights = SharedWeights("float32")
    values: dict[str, Any] = {
        "name": "p", "settings": Vllm(), "slots": 4, "max_len": 128, "device": "cpu", "dtype": "float32",
        "threads": 1, "weights": weights, "token": KEY, "trained": True, "eos_ids": [2, 5],
        "parser": "hermes", "timeout": 300.0,
    }  # fmt: skip
    return Engines([VllmEngine(path, **values | more)], weights, KEY)


def ask(engines: Engines, path: str, body: Any = None) -> Any:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(engines.each[0].address + path, data, headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def sums(model: Any) -> dict[str, float]:
    return {name: float(tensor.sum()) for name, tensor in for_vllm(model).items()}


@pytest.fixture
def running(scripted: Path) -> Iterator[Engines]:
    engines = engine_of(scripted / "policy")
    try:
        engines.start()
        yield engines
    finally:
        engines.close()


def test_all_weights_come_in_place_and_answers_say_which(running: Engines) -> None:
    """The policy's output layer is tied: it is sent as one of its own."""
    config = replace(tiny_config(), tied=True)
    begun = ask(running, "/started")
    for version in (0, 1, 2):
        model = init_model(config, seed=version)
        assert running.update(running.wanted(model), version, constant={"model.norm.weight"}) == version
        said = ask(running, "/v1/completions", {"model": "p"})
        assert said["policy_version"] == version
        assert said["weights"] == pytest.approx(sums(model), abs=1e-3)
        assert "lm_head.weight" in said["weights"] and "lm_head.weight" not in state(model)
    flags = begun["argv"]
    assert flags[flags.index("--served-model-name") + 1] == "p"
    assert {"--max-model-len", "--max-num-seqs", "--enable-auto-tool-choice"} <= {*flags}
    for name, value in (
        ("--host", "127.0.0.1"), ("--logprobs-mode", "processed_logprobs"), ("--load-format", "dummy"),
        ("--max-model-len", "128"), ("--max-num-seqs", "4"), ("--dtype", "float32"),
        ("--tool-call-parser", "hermes"),
    ):  # fmt: skip
        assert flags[flags.index(name) + 1] == value
    assert "--enable-sleep-mode" not in flags and "--enable-lora" not in flags
    environment = begun["environment"]
    assert environment["VLLM_ENFORCE_STRICT_TOOL_CALLING"] == "0"
    assert environment["OMP_NUM_THREADS"] == "1"
    kept = json.dumps(begun)
    assert KEY not in kept and "a secret of the run" not in kept
    steps = [path for path, _ in ask(running, "/asked") if path != "/v1/completions"]
    assert steps == ["/collective_rpc", *["/collective_rpc", "/reset_prefix_cache"] * 3]


def test_an_update_that_vllm_refuses_is_said_with_its_words(running: Engines) -> None:
    with pytest.raises(EngineError, match=r"POST /collective_rpc: 500 .*model\.safetensors is no number"):
        running.update({"w": torch.tensor([math.nan])}, 1)


def test_a_cache_that_stays_is_an_error(running: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VllmEngine, "patience", 0.0)
    with pytest.raises(EngineError, match="kept a cache of policy 'p'"):
        running.update({"nothing": torch.zeros(1)}, 1)


def test_its_death_is_told_with_the_end_of_its_log(running: Engines, tmp_path: Path) -> None:
    assert running.died() is None and running.pids() == {}
    with pytest.raises((OSError, urllib.error.URLError)):
        ask(running, "/v1/die")
    while running.died() is None:
        time.sleep(0.01)
    assert "exit status 3; its stderr ends with:" in (running.died() or "")
    assert "the cause of its death" in (running.died() or "")
    running.copy_log(tmp_path)
    assert "the cause of its death" in (tmp_path / "vllm.log").read_text()
    with pytest.raises(EngineError, match=r"died: exit status 3"):
        running.update({"w": torch.zeros(1)}, 1)


def test_with_lora_a_version_is_an_adapter_of_the_policys_name(scripted: Path) -> None:
    model = tiny_policy().model
    settings = peft_settings(LORA, targets_of(model, LORA))
    adapt(model, LORA, seed=1)
    assert settings == peft_config(adapted(model))
    engines = engine_of(scripted / "policy", adapter=settings, device="cuda:3")
    try:
        engines.start()
        for version in (0, 1):
            with torch.no_grad():
                for layer in adapted(model).values():
                    layer.lora_B.add_(1.0)
            engines.update(engines.wanted(model), version)
            said = ask(engines, "/v1/completions", {"model": "p"})
            assert said["policy_version"] == version
            assert said["weights"] == pytest.approx(sums(model), abs=1e-3)
            assert all(name.startswith("base_model.model.model.layers.") for name in said["weights"])
            assert json.loads(said["adapters"]["p"]) == settings
        with engines.resting():
            during = [path for path, _ in ask(engines, "/asked")][-1]
        assert during == "/sleep?level=1"
        assert ask(engines, "/v1/completions", {"model": "p"})["policy_version"] == 1
        steps = [path for path, _ in ask(engines, "/asked") if path != "/v1/completions"]
        load = ["/v1/load_lora_adapter", "/reset_prefix_cache"]
        assert steps == [*load, "/v1/unload_lora_adapter", *load, "/sleep?level=1", "/wake_up"]
        begun = ask(engines, "/started")
        flags = begun["argv"]
        assert flags[flags.index("--max-lora-rank") + 1] == "8" and "--enable-sleep-mode" in flags
        assert flags[flags.index("--served-model-name") + 1] == "p:base"
        assert "--load-format" not in flags and begun["environment"]["CUDA_VISIBLE_DEVICES"] == "3"
    finally:
        engines.close()


async def test_a_policy_that_is_not_trained_is_served_as_its_folder_is(scripted: Path) -> None:
    policy = saved_policy(scripted / "policy")
    server = LocalServer(PolicyFolder(policy, options={"engine": "vllm", "lora": {"rank": 2}}, name="old"))
    llm = await server.start()
    try:
        assert llm.logprobs_mode == "processed" and llm.model == "old"
        request = urllib.request.Request(
            f"{llm.endpoint}/completions",
            json.dumps({"model": "old"}).encode(),
            {"Authorization": f"Bearer {llm.api_key}", "Content-Type": "application/json"},
        )
        with await asyncio.to_thread(urllib.request.urlopen, request) as answer:
            assert json.load(answer)["policy_version"] == 0
        assert server._engines is not None
        command = server._engines.each[0]._command  # type: ignore[attr-defined]
        assert "--load-format" not in command and "--enable-lora" not in command
        assert "--tool-call-parser" not in command  # its template has no tools
    finally:
        await server.close()


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, {"rank": 2}])
async def test_a_driver_serves_its_own_weights_from_the_start(scripted: Path, lora: Any) -> None:
    """Also where it begins with version 0 of LoRA."""
    policy = saved_policy(scripted / "policy")
    options = {"engine": "vllm", "threads": 1, "lora": lora}
    driver = LocalDriver(PolicyFolder(policy, options=options, name="p"), Recipe(name="t", group_size=2))
    await driver.start()
    try:
        model, engines = driver._loaded().model, driver._engines
        assert engines is not None
        key = engines.llm("p").api_key
        request = urllib.request.Request(
            engines.each[0].address + "/v1/completions",
            b'{"model": "p"}',
            {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        with await asyncio.to_thread(urllib.request.urlopen, request) as answer:
            said = json.load(answer)
        assert said["policy_version"] == 0
        assert said["weights"] == pytest.approx(sums(model), abs=1e-3)
        assert ("p" in said["adapters"]) == (lora is not None)
    finally:
        await driver.close()


@pytest.mark.parametrize(("staleness", "rests"), [(0, 1), (1, 0)])
async def test_engines_rest_during_an_update_unless_calls_of_later_steps_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staleness: int, rests: int
) -> None:
    found: list[str] = []

    @contextmanager
    def resting(self: Engines) -> Iterator[None]:
        found.append("sleeps")
        yield

    monkeypatch.setattr(Engines, "resting", resting)
    recipe = Recipe(name="t", group_size=2, max_staleness=staleness)
    folder = PolicyFolder(saved_policy(tmp_path / "policy"), options={"engine": "thread", "threads": 1})
    driver = LocalDriver(folder, recipe)
    await driver.start()
    try:
        updater = await driver._call(driver._updater)
        metrics = await driver._call(driver._update, updater, Batch(rows=[], metrics={}))
        assert metrics["skipped"] == 1.0 and len(found) == rests
    finally:
        await driver.close()


PARENT = """
import sys
from pathlib import Path
from plugins.local.tests.test_vllm_engine import engine_of
engines = engine_of(Path("policy"))
engines.start()
print(engines.each[0].pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_it_dies_with_its_parent(scripted: Path) -> None:
    path = os.pathsep.join([os.environ["PYTHONPATH"], *[p for p in sys.path if p]])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        cwd=Path(__file__).parents[3],
    )
    assert parent.stdin is not None and parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_running(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait(300)
    parent.stdin.close()
    parent.stdout.close()
    while is_running(pid):
        time.sleep(0.05)


def test_a_start_that_is_given_up_ends(scripted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits on for a server that was closed meanwhile."""
    engines = engine_of(scripted / "policy")
    begun = threading.Event()

    def tell(self: VllmEngine, *secrets: str) -> None:
        begun.set()  # and without its key it never serves

    monkeypatch.setattr(VllmEngine, "_tell", tell)
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(engines.start)
        begun.wait(300)
        engines.close()
        with pytest.raises(EngineError, match="ended before it served"):
            start.result(300)


# ------------------------------------------------------------------------------------------ what is refused
def test_an_interpreter_without_vllm_is_said(tmp_path: Path) -> None:
    engines = engine_of(tmp_path)
    with pytest.raises(
        EngineError, match=r"has no vllm: name an interpreter with vLLM.*options\.vllm\.python"
    ):
        engines.start()
    engines.close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"engine": "vllm", "deterministic": True}, "deterministic: True is not for engine: vllm"),
        ({"engine": "vllm", "quantize": "nf4", "lora": {"rank": 2}}, "quantize: nf4 is not for engine: vllm"),
        ({"engine": "vllm", "engines": 2}, "engines: 2 is not for engine: vllm"),
        (
            {"engine": "vllm", "lora": {"rank": 600}},
            r"lora: .*600.* is not for engine: vllm: ranks end at 512",
        ),
        ({"engine": "vllm", "device": "mps"}, "device: mps is not for engine: vllm"),
        ({"vllm": {}}, "vllm is for engine: vllm, which is process"),
        ({"engine": "vllm", "vllm": {"args": {"max_model_len": 5}}}, "'max_model_len' is not for you to set"),
        ({"engine": "vllm", "vllm": {"args": {"--seed": 5}}}, "'--seed' is not for you to set"),
        ({"engine": "vllm", "vllm": {"arg": {}}}, "unknown field `arg`"),
    ],
)
def test_what_vllm_cannot_do_is_refused_by_its_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        read_options(given)


def test_arguments_become_flags() -> None:
    given = {"gpu-memory-utilization": 0.5, "enforce_eager": True, "async-scheduling": False}
    flags = Vllm(args={**given, "cudagraph-capture-sizes": [1, 2], "kv": {"a": 1}}).flags()
    assert flags == ["--gpu-memory-utilization", "0.5", "--enforce-eager", "--no-async-scheduling",
                     "--cudagraph-capture-sizes", "1", "2", "--kv", '{"a": 1}']  # fmt: skip


def test_a_template_whose_calls_vllm_has_another_name_for_needs_it(tmp_path: Path) -> None:
    named = "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}[CALL]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}[END]{% endfor %}{% endif %}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"  # noqa: E501
    tokenizer = with_template(named)
    policy = save_policy(Policy(tiny_policy().model, tokenizer, tiny_config()), tmp_path / "policy")
    with pytest.raises(Refused, match=r"give it as backend\.options\.vllm\.args\.tool-call-parser"):
        make_engines(policy, "p", Options(engine="vllm"))
    given = Vllm(args={"tool-call-parser": "mine"})
    engines = make_engines(policy, "p", Options(engine="vllm", vllm=given))
    assert "--enable-auto-tool-choice" in engines.each[0]._command  # type: ignore[attr-defined]
    engines.close()


def with_template(template: str) -> ChatTokenizer:
    tokenizer = tiny_tokenizer()
    return ChatTokenizer(
        tokenizer.backend, chat_template=template, eos_ids=tokenizer.eos_ids, config=tokenizer.config
    )


@pytest.mark.parametrize("config", [{"model_type": "gpt2"}, small_config(259, "smollm3").to_hf()])
def test_a_family_that_was_not_tried_there_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    policy = saved_policy(tmp_path / "policy")
    (policy / "config.json").write_text(json.dumps(config))
    with pytest.raises(Refused, match="engine: vllm serves models of the Qwen2, Qwen3 and Llama families"):
        make_engines(policy, "p", Options(engine="vllm"))
