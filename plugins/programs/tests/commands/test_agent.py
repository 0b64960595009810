"""A command as an agent: how the task reaches it, how it ends, and what is recorded."""

from __future__ import annotations

import asyncio
import json
import pickle
import shlex
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from agl_programs.commands.agent import CommandAgent
from agl_programs.commands.result import CommandResult
from agl_testing import Reply, ScriptedModelServer

from agentlightning.algorithms.evaluate import failure_reasons
from agentlightning.credit.rollout_reward import rollout_reward
from agentlightning.credit.verdicts import refusal_of, refused, unrecorded
from agentlightning.decorator.reward_function import AgentError
from agentlightning.types import AttemptStatus, UsageError
from plugins.programs.tests.commands.running import ASK, Bench, bench, python, until

TASK = {"question": "how many?", "n": 2, "list of": ["x"]}
SAY = "import json, os, sys; print(json.dumps({'reward': 1, 'argv': sys.argv[1:], 'env': dict(os.environ), "
SAY += "'stdin': sys.stdin.read(), 'cwd': os.getcwd(), 'files': sorted(os.listdir('.'))}))"
ASK_WITH = """
import json, os, urllib.request
def ask(headers):
    url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    body = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + key, **headers}
    request = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(), headers)
    return urllib.request.urlopen(request).read()
"""
"""The beginning of a Python program that calls a model with headers of its own."""
SEEN: list[CommandResult] = []


def look(task: Any, result: CommandResult) -> float:
    SEEN[:] = [result]
    return 0.5


def said() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SEEN[0].stdout)
    return found


async def test_the_task_reaches_arguments_environment_and_standard_input(
    here: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AGL_SECRET", "MY_TOKEN", "PASSED_A"):
        monkeypatch.setenv(name, "a secret of sixteen bytes")
    command = python(SAY, "{task.question}", "{task}")
    options = {"stdin": "{task.n}!", "env": {"N": "n={task.n}"}, "pass_env": ["PASSED_*"], "reward": look}
    ran = await here.run(command, TASK, **options)
    assert ran.rollout.status == "succeeded" and [reward.value for reward in ran.rewards] == [0.5]
    found = said()
    assert found["argv"] == ["how many?", json.dumps(TASK)] and found["stdin"] == "2!"
    env = found["env"]
    assert env["N"] == "n=2"
    assert env["PASSED_A"] and "AGL_SECRET" not in env and "MY_TOKEN" not in env
    assert env["OPENAI_BASE_URL"].startswith("http://127.0.0.1:") and env["OPENAI_MODEL"] == "policy"
    assert found["files"] == [] and not Path(found["cwd"]).exists()  # empty, and removed at the end


LOOK_ROUND = """
import os, pathlib
found = [value for value in os.environ.values()] + [open("/proc/self/environ", errors="replace").read()]
found += [open("/proc/self/cmdline", errors="replace").read(), sys.stdin.read()]
found += [path.read_text(errors="replace") for path in pathlib.Path(".").rglob("*") if path.is_file()]
for pid in (os.getpid(), os.getppid()):
    try:
        found.append(open(f"/proc/{pid}/environ", errors="replace").read())
    except OSError:
        pass
print(json.dumps({"reward": float(any(word in text for text in found for word in WANTED))}))
"""
"""A program that looks for words of :data:`WANTED` wherever a program finds something without asking."""


@pytest.mark.parametrize("given", [["{task.question}"], "line", []])
async def test_a_program_gets_no_field_that_is_not_named(here: Bench, given: Any) -> None:
    source = "import json, sys\nWANTED = ['the-' + 'answer', 'the-' + 'key']" + LOOK_ROUND
    task = {"question": "how many?", "answer": "the-answer", "deep": {"key": ["the-key"]}}
    command = python(source, *given) if given != "line" else shlex.join(python(source)) + " {task.question}"
    ran = await here.run(command, task, reward="json")
    assert ran.rollout.status == "succeeded", ran.attempt.reason
    assert [reward.value for reward in ran.rewards] == [0.0]
    named = await here.run(python(source, "{task.answer}"), task, reward="json")
    assert [reward.value for reward in named.rewards] == [1.0]  # the program does look


@pytest.mark.parametrize(
    "given",
    [
        {"command": ["true", "{task.answer}"]},
        {"command": "echo {task.answer.text}"},
        {"command": ["true", "{task}"]},
        {"command": ["true"], "stdin": "{task}"},
        {"command": ["true"], "env": {"A": "is {task.answer}"}},
    ],
)
def test_a_command_that_names_a_private_field_is_refused(given: dict[str, Any]) -> None:
    options = {"reward": "exit-status", **given}
    CommandAgent(options["command"], **{k: v for k, v in options.items() if k != "command"})
    with pytest.raises(AgentError, match="private"):
        CommandAgent(options.pop("command"), private=["answer"], **options)


async def test_a_proxy_with_a_password_is_not_passed_on(here: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:hidden-word@127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    await here.run(python(SAY), TASK, reward=look)
    assert "HTTPS_PROXY" not in said()["env"] and said()["env"]["HTTP_PROXY"] == "http://127.0.0.1:9"
    ran = await here.run(python(SAY), TASK, reward=look, pass_env=["HTTPS_PROXY"])
    assert said()["env"]["HTTPS_PROXY"].endswith("hidden-word@127.0.0.1:9")  # the user names it
    assert "hidden-word" not in str(ran.spans) and "***" in ran.command["agl.command.stdout"]


async def test_a_call_without_an_sdk_is_exact_and_named(here: Bench, server: ScriptedModelServer) -> None:
    before = len(server.log)
    source = ASK + "ask('one'); ask('two', stream=True); ask('three', n=2); ask('four')"
    ran = await here.run(python(source), TASK, reward=look, name="solver")
    assert ran.kinds == ["exact"] * 5 and len(server.log) - before == 4
    assert {call.tags["agent"] for call in ran.record.calls} == {"solver"}
    assert [(call.path, call.status) for call in SEEN[0].calls] == [("/v1/chat/completions", 200)] * 4
    assert SEEN[0].calls[0].answer["choices"][0]["message"]["content"] == "ok"
    assert SEEN[0].calls[0].request["messages"][0]["content"] == "one"
    assert isinstance(SEEN[0].calls[1].answer, list)


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_of_translated_apis_are_exact(here: Bench, stream: bool) -> None:
    source = f"{ASK}ask('a', path='/messages', max_tokens=9, stream={stream})\n"
    source += f"ask(path='/responses', input='b', stream={stream})"
    ran = await here.run(python(source), reward="exit-status")
    assert [one.value for one in ran.rewards] == [1.0], ran.command
    assert ran.kinds == ["exact"] * 2


async def test_calls_at_the_same_time_are_all_exact(here: Bench) -> None:
    source = ASK + "from concurrent.futures import ThreadPoolExecutor as P\nlist(P(8).map(ask, 'abcdefgh'))"
    ran = await here.run(python(source), reward="exit-status")
    assert ran.kinds == ["exact"] * 8


async def test_a_call_of_the_openai_package_is_exact_and_has_one_span(here: Bench) -> None:
    source = "from openai import OpenAI\nmessages = [{'role': 'user', 'content': 'hi'}]\n"
    source += "OpenAI().chat.completions.create(model='x', messages=messages)"
    ran = await here.run(python(source), reward="exit-status")
    assert ran.kinds == ["exact"] and len(ran.record.wire) == 1


@pytest.mark.parametrize(("code", "reward"), [(0, 1.0), (1, 0.0), (125, 0.0)])
async def test_the_exit_status_is_a_reward(here: Bench, code: int, reward: float) -> None:
    ran = await here.run(f"exit {code}", reward="exit-status")
    assert ran.rollout.status == "succeeded" and [one.value for one in ran.rewards] == [reward]


@pytest.mark.parametrize(
    ("line", "reward", "reason"),
    [
        ("exit 126", "exit-status", "agent-raised: ProgramFailed: the program exited with status 126"),
        ("kill -9 $$", "exit-status", "the program died with signal 9 (SIGKILL)"),
        ("echo oh no >&2; exit 3", "json", "the program exited with status 3: oh no"),
        ("echo no json", "json", "no-reward: the program printed no line with a JSON object"),
        (
            "echo '{\"x\": 1}'",
            "json",
            "no-reward: the last JSON line of its standard output has no 'reward'; it has 'x'",
        ),
        ('echo \'{"reward": "a"}\'', "json", "bad-reward: the reward in the last JSON line"),
        ("echo '{\"reward\": NaN}'", "json", "bad-reward: "),
        ("true", {"file": "out"}, "no-reward: the program wrote no file out"),
        ("echo hello > out", {"file": "out"}, "bad-reward: the file out holds 'hello', which is no JSON"),
        ("mkdir out", {"file": "out"}, "no-reward: the program wrote no file out"),
        ("echo 3 > $AGL_REWARD_FILE; exit 1", None, "the program exited with status 1"),
        ("echo x > $AGL_REWARD_FILE", None, "bad-reward: "),
    ],
)
async def test_a_failure_says_why_and_is_no_reward(here: Bench, line: str, reward: Any, reason: str) -> None:
    from agl_programs.commands.settings import RewardSection

    ran = await here.run(line, reward=RewardSection(**reward) if isinstance(reward, dict) else reward)
    assert ran.rollout.status == "failed" and ran.rewards == []
    assert reason in (ran.attempt.reason or "")


@pytest.mark.parametrize(
    ("line", "reward", "value"),
    [
        ("echo '{\"reward\": 9}'; echo; echo '{\"reward\": 2}'; echo bye", "json", 2.0),
        ("echo '{\"score\": true}'", {"key": "score"}, 1.0),
        ('echo \'{"reward": 3, "why": "a\u2028{b\u0085c"}\'', "json", 3.0),
        ("echo 0.25 > out", {"file": "out"}, 0.25),
        ("echo '{\"a\": -1}' > out", {"file": "out", "key": "a"}, -1.0),
        ("echo 7 > $AGL_REWARD_FILE", None, 7.0),
    ],
)
async def test_a_reward_is_read_from_its_place(here: Bench, line: str, reward: Any, value: float) -> None:
    from agl_programs.commands.settings import RewardSection

    ran = await here.run(line, reward=RewardSection(**reward) if isinstance(reward, dict) else reward)
    assert [one.value for one in ran.rewards] == [value], ran.attempt.reason


async def test_a_reward_function_that_raises_fails_the_attempt(here: Bench) -> None:
    def bad(task: Any, result: CommandResult) -> float:
        raise ValueError("no")

    ran = await here.run("true", reward=bad)
    assert "the reward function" in (ran.attempt.reason or "") and "ValueError: no" in (
        ran.attempt.reason or ""
    )


async def test_an_unknown_field_fails_the_attempt(here: Bench) -> None:
    ran = await here.run(["echo", "{task.x}"], {"y": 1})
    assert "there is no 'x' in the task; it has y" in (ran.attempt.reason or "")


async def test_a_text_that_no_argument_can_hold_fails_the_attempt(here: Bench) -> None:
    ran = await here.run(["echo", "{task.x}"], {"x": "a\0b"})
    assert "the program cannot be executed: embedded null byte" in (ran.attempt.reason or "")


async def test_a_call_that_the_gateway_refuses_is_counted_apart(here: Bench) -> None:
    source = ASK + "path = '/responses'\ntry: ask(path=path, input='x', tools=[{'type': 'tool_search'}])\n"
    source += "except urllib.error.HTTPError as error: assert error.code == 400\nask()"
    ran = await here.run(python(source), reward="exit-status")
    assert ran.kinds == ["exact"]
    assert [refusal_of(span) for span in refused(ran.record)] == ["unsupported-field"] and not unrecorded(
        ran.record
    )


async def test_the_output_is_kept_to_its_limit(here: Bench) -> None:
    source = "import sys; sys.stdout.write('x' * 3_000_000 + 'end'); sys.stderr.write('y' * 200)"
    ran = await here.run(python(source), reward=look, output_bytes=100)
    assert SEEN[0].stdout == "x" * 97 + "end" and SEEN[0].stdout_dropped == 2_999_903
    assert SEEN[0].stderr == "y" * 100 and ran.command["agl.command.bytes_dropped"] == 3_000_003


async def test_secrets_are_hidden_in_what_is_recorded(here: Bench) -> None:
    line = "echo $OPENAI_API_KEY; echo $MY_TOKEN >&2; exit 3"
    ran = await here.run(line, env={"MY_TOKEN": "12345678"}, reward="json")
    assert ran.command["agl.command.stdout"] == ran.command["agl.command.stderr"] == "***\n"
    assert "12345678" not in str(ran.attempt.reason) and "***" in str(ran.attempt.reason)


async def test_files_are_copied_and_the_folder_is_kept(here: Bench, tmp_path: Path) -> None:
    (tmp_path / "app" / "sub").mkdir(parents=True)
    (tmp_path / "app" / "sub" / "a.txt").write_text("a")
    (tmp_path / "app" / "run.sh").write_text("#!/bin/sh\ncat sub/a.txt data > out\n")
    (tmp_path / "app" / "run.sh").chmod(0o755)
    (tmp_path / "data").write_text("d")
    agent = CommandAgent(
        ["./run.sh"], files=["app", "data"], keep="kept", folder=tmp_path, reward="exit-status"
    )
    ran = await here.run(agent)
    assert [one.value for one in ran.rewards] == [1.0], ran.attempt.reason
    assert (tmp_path / "kept" / ran.attempt.attempt_id / "out").read_text() == "ad"
    assert not (tmp_path / "app" / "out").exists()


async def test_a_script_beside_the_description_is_found(here: Bench, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import sys; sys.exit(sys.argv[1] != 'app.txt')")
    ran = await here.run([sys.executable, "app.py", "app.txt"], folder=tmp_path, reward="exit-status")
    assert [one.value for one in ran.rewards] == [1.0]


def test_what_cannot_run_is_refused_at_once(tmp_path: Path) -> None:
    for options, message in [
        ({"command": ["no-such-program"]}, "there is no program"),
        ({"command": ["true"], "files": ["nowhere"]}, "files: there is no .*nowhere"),
        ({"command": ["true"], "reward": "exit"}, "reward is 'exit'"),
        ({"command": ["true"], "reward": lambda: 1}, "it may take task, result, agent by name"),
    ]:
        with pytest.raises(UsageError, match=message):
            CommandAgent(**options, folder=tmp_path)  # type: ignore[arg-type]


def test_it_is_sent_to_worker_processes() -> None:
    agent = pickle.loads(pickle.dumps(CommandAgent(["true"], reward=look, name="x")))
    assert agent.name == "x" and agent.reward.function.function is look


@pytest.mark.slow
@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_program_whose_time_is_up_ends_with_all_its_processes(
    here: Bench, tmp_path: Path, stubborn: bool
) -> None:
    pids = tmp_path / "pids"
    trap = "trap '' TERM; " if stubborn else ""
    line = f"{trap}sleep 60 & echo $! $$ > {pids}; {trap}sleep 60; sleep 60"
    for limit in (0.4, 4.0, 40.0):  # on a busy machine the shell may begin later than the first
        ran = await here.run(line, timeout=limit)
        if pids.exists() and pids.read_text().strip():
            break
    why = ran.attempt.reason or ""
    assert ran.attempt.status == AttemptStatus.TIMEOUT and f"longer than {limit:g} s" in why
    found = [int(pid) for pid in pids.read_text().split()]
    await until(lambda: not any(psutil.pid_exists(pid) for pid in found))
    assert "exit.code" not in str(ran.command)


async def test_processes_that_a_program_leaves_in_its_group_are_killed(here: Bench, tmp_path: Path) -> None:
    ran = await here.run(f"sleep 60 & echo $! > {tmp_path}/pid", reward="exit-status")
    assert [one.value for one in ran.rewards] == [1.0]
    pid = int((tmp_path / "pid").read_text())
    await until(lambda: not psutil.pid_exists(pid))


async def test_a_cancelled_attempt_leaves_no_process(here: Bench, tmp_path: Path) -> None:
    runner = here.runner(f"echo $$ > {tmp_path}/pid; sleep 60")
    step = asyncio.create_task(runner.step(None, here.resources_id))
    file = tmp_path / "pid"
    await until(lambda: file.exists() and file.read_text().strip())
    runner.stop_all()
    rollout = await step
    assert (rollout.reason or "").startswith("cancelled")
    await until(lambda: not psutil.pid_exists(int(file.read_text())))


async def test_an_engine_that_refuses_is_the_models_failure() -> None:
    with ScriptedModelServer(lambda body: Reply(status=400, message="no such tool")) as server:
        async with bench(server) as here:
            ran = await here.run(python(ASK + "ask()"), reward="json")
    assert (ran.attempt.reason or "").startswith("model-4xx: ")
    assert [call.status for call in ran.record.calls] == ["error"]


async def test_a_program_leads_a_session_of_its_own_and_reads_nothing(here: Bench) -> None:
    source = "import os, sys; sys.exit(os.getsid(0) != os.getpid() or sys.stdin.read() != '')"
    ran = await here.run(python(source), reward="exit-status")
    assert [one.value for one in ran.rewards] == [1.0]


@pytest.mark.parametrize(
    ("headers", "agent", "phase"),
    [
        ({"x-agl-agent": "writer"}, "writer", None),
        ({"X-Agl-Tags": "%7B%22agent%22%3A%22critic%22%2C%22phase%22%3A%22day%22%7D"}, "critic", "day"),
        ({"baggage": "agl.agent=poet,agl.phase=night"}, "poet", "night"),
        ({}, "solver", None),
    ],
)
async def test_the_names_that_a_program_sends_outrank_the_commands(
    here: Bench, headers: dict[str, str], agent: str, phase: str | None
) -> None:
    ran = await here.run(python(f"{ASK_WITH}\nask({headers!r})"), name="solver")
    (call,) = ran.record.calls
    assert ran.kinds == ["exact"] and (call.tags["agent"], call.tags.get("phase")) == (agent, phase)


async def test_malformed_tags_of_a_program_are_refused_by_the_gateway(here: Bench) -> None:
    source = "try: ask({'x-agl-tags': 'no JSON'})\nexcept OSError as error: print(error.code, error.read())"
    ran = await here.run(python(f"{ASK_WITH}\n{source}"), reward=look)
    assert "400" in SEEN[0].stdout and "x-agl-tags is not a URL-quoted JSON object" in SEEN[0].stdout
    assert ran.rollout.status == "succeeded"


async def test_a_program_that_asks_no_model_says_why_by_its_last_line(here: Bench) -> None:
    silent = "import sys; print('started', file=sys.stderr); print('no config file', file=sys.stderr)"
    ran = await here.run(python(silent), TASK, reward="exit-status")
    assert ran.rollout.status == "succeeded" and rollout_reward(ran.record).failure == "no-call"
    said = rollout_reward(ran.record).reason
    assert said.startswith("no-call: ") and said.endswith("the end of its standard error: no config file")
    assert failure_reasons([ran.record]) == f"1 × {said}", "what `agl doctor` and an evaluation print"
    asking = await here.run(python(f"{ASK}\nask()\n{silent}"), TASK, reward="exit-status")
    assert rollout_reward(asking.record).value == 1.0 and asking.attempt.reason is None
