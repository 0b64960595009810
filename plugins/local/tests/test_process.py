from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from agl_local.generation.request import EngineError
from agl_local.http.process import EngineProcess
from agl_local.options import Options
from agl_local.policy.folder import state
from agl_local.policy.shared import Handover
from agl_local.policy.weights import StateError
from agl_local.serving import make_engines
from plugins.local.tests.engine_fixtures import logprobs_of, small_policy

OPTIONS = {"threads": 1, "slots": 4, "max_len": 128}
PARENT = """
import sys
from agl_local.http.process import EngineProcess
child = EngineProcess(sys.argv[1], threads=1, slots=2, max_len=64)
child.start()
print(child.pid, child.address, flush=True)
sys.stdin.read()
"""


def completion(address: str, **body):
    request = urllib.request.Request(
        address + "/v1/completions",
        json.dumps({"model": "p", **body}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


@pytest.mark.slow
def test_start_update_and_close(policy_dir):
    other = small_policy(seed=1)
    with EngineProcess(policy_dir, name="p", **OPTIONS) as child:
        assert child.alive() and child.version() == 0 and child.address.startswith("http://127.0.0.1:")
        fields = {"prompt": [5, 6, 7], "max_tokens": 6, "logprobs": 0, "return_token_ids": True, "seed": 1}
        before = completion(child.address, **fields)
        with child.weights.publish(state(other.model)) as handover:
            assert child.update(handover, 5) == 5 == child.version()
        after = completion(child.address, **fields)
        assert (before["policy_version"], after["policy_version"]) == (0, 5)
        for p, body in ((small_policy(), before), (other, after)):
            choice = body["choices"][0]
            want = logprobs_of(p, [5, 6, 7], choice["token_ids"])
            assert choice["logprobs"]["token_logprobs"] == pytest.approx(want, abs=1e-5)
        child.pause()
        assert child.metrics()["paused"] == "drain"
        child.resume()
        with (
            pytest.raises(EngineError, match=r"400 .*below the present version"),
            child.weights.publish(state(other.model)) as handover,
        ):
            child.update(handover, 4)
        with pytest.raises(StateError, match=r"earlier update .* failed"), child.weights.publish({}):
            pass
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(child.address + "/agl/version", timeout=300)
        arguments = Path(f"/proc/{child.pid}/cmdline")
        if arguments.exists():
            assert child._token.encode() not in arguments.read_bytes()
        with pytest.raises(EngineError, match="already"):
            child.start()
        address = child.address
    child.close()
    assert not child.alive()
    with pytest.raises(OSError):
        urllib.request.urlopen(address + "/health", timeout=300)
    with pytest.raises(EngineError, match="not running"):
        child.version()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["process", "thread"])
def test_an_engine_of_a_run_answers_only_who_has_its_key(policy_dir, engine):
    """An agent that finds the address, for which any program may look, does not sample past the gateway."""
    engines = make_engines(Path(policy_dir), "p", Options(engine=engine, threads=1, max_len=128))
    try:
        engines.start()
        llm = engines.llm("p")
        assert llm.api_key and len(llm.api_key) >= 32
        fields = {"prompt": [5, 6, 7], "max_tokens": 2}
        for key in ({}, {"Authorization": "Bearer EMPTY"}, {"Authorization": "Bearer " + "x" * 43}):
            for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/models"):
                with pytest.raises(urllib.error.HTTPError, match="401"):
                    ask(llm.endpoint.removesuffix("/v1") + path, fields, key)
        key = {"Authorization": f"Bearer {llm.api_key}"}
        assert ask(llm.endpoint + "/completions", fields, key)["choices"]
        for pid in engines.pids().values():  # nor does the kernel tell the key
            kept = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
            assert not any(llm.api_key.encode() in one for one in kept)
    finally:
        engines.close()


def ask(url, body, headers):
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"} | headers
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


@pytest.mark.slow
def test_a_closed_child_ends_by_itself_with_status_0_and_hears_no_terminal(policy_dir):
    child = EngineProcess(policy_dir, **OPTIONS)
    child.start()
    process = child._process
    assert os.getpgid(child.pid) != os.getpgid(0)  # Ctrl-C goes to the foreground group
    child.close(timeout=300)
    assert process.returncode == 0


@pytest.mark.slow
def test_a_child_that_cannot_start_says_why(tmp_path):
    with pytest.raises(
        EngineError, match=r"ended with status 2(.|\n)*config\.json: a model folder needs this file"
    ):
        EngineProcess(tmp_path).start()


def test_a_child_that_is_not_ready_in_time_is_ended(policy_dir):
    child = EngineProcess(policy_dir, timeout=0.01)
    with pytest.raises(EngineError, match=r"not ready within 0\.01 s"):
        child.start()
    assert not child.alive()


@pytest.mark.slow
def test_a_killed_child_is_reported(policy_dir):
    with EngineProcess(policy_dir, **OPTIONS) as child:
        os.kill(child.pid, signal.SIGKILL)
        child._process.wait(300)
        assert "signal 9 (SIGKILL)" in (child.died() or "")
        with pytest.raises(EngineError, match=r"the engine of policy 'policy' died: signal 9 \(SIGKILL\)"):
            child.update(Handover(0, 0, 0), 1)
    assert child.died() is None  # it was closed


@pytest.mark.slow
def test_the_child_dies_with_its_parent(policy_dir):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(policy_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    pid, address = parent.stdout.readline().decode().split()
    with urllib.request.urlopen(address + "/health", timeout=300) as answer:
        assert answer.status == 200
    parent.kill()
    parent.wait(300)
    parent.stdin.close()
    parent.stdout.close()
    while is_running(int(pid)):
        pass


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True
    ).stdout.strip()
    return bool(state) and not state.startswith("Z")


def test_one_name_for_each_policy(policy_dir, capsys):
    from agl_local.http.server import parse_args

    args = parse_args(["--policy", "x", "--policy", "y", "--name", "a", "--name", "b"])
    assert (args.policy, args.name) == (["x", "y"], ["a", "b"])
    for wrong in (
        ["--policy", "x", "--policy", "y"],
        ["--policy", "x", "--policy", "y", "--name", "a", "--name", "a"],
    ):
        with pytest.raises(SystemExit):
            parse_args(wrong)
    assert "--name of its own" in capsys.readouterr().err
