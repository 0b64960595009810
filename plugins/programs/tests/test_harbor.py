"""Task folders of Harbor: what an agent finds and does not find, what its tests give, what is refused."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agl_programs.harbor import NotGraded, play, tasks, trial
from agl_programs.sandbox import bubblewrap
from agl_testing import ScriptedModelServer, tool_call
from contract.running import rolled_out
from contract.turn_limit import TurnLimit

from agentlightning.credit.verdicts import verdicts
from agentlightning.store import SQLiteStore
from agentlightning.types import UsageError
from plugins.programs.tests.sandbox.conftest import bwrap

__all__ = ["bwrap"]
DOCKERFILE = """FROM python:3.12-slim
# the numbers to be added
ENV UNIT=cm LIMIT="9 9"
WORKDIR /app/src
COPY numbers.txt data/ /data/
RUN mkdir -p out && \\
    echo "$UNIT" > out/unit
"""
TEST = """#!/bin/bash
total=$(python3 -c "print(sum(map(int, open('/data/numbers.txt'))))")
if [ "$(cat out/total)" = "$total" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
exit 3
"""
SOLVE = "#!/bin/bash\npython3 -c \"print(sum(map(int, open('/data/numbers.txt'))))\" > out/total\n"
Made = Callable[..., Path]


def docker(lines: str) -> dict[str, str]:
    """A Dockerfile with these lines, as a keyword of ``made``."""
    return {"environment__Dockerfile_": f"FROM x\nWORKDIR /app\n{lines}\n"}


def toml(text: str) -> dict[str, str]:
    """A ``task.toml``, as a keyword of ``made``."""
    return {"task_toml": f'version = "1.0"\n{text}\n'}


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Makes a task folder; keywords replace files."""

    def make(**files: str) -> Path:
        whole = {
            "task.toml": 'version = "1.0"\n[verifier]\ntimeout_sec = 20.0\n[environment]\nmemory_mb = 512\n',
            "instruction.md": "Write the sum of /data/numbers.txt to out/total.",
            "environment/Dockerfile": DOCKERFILE,
            "environment/numbers.txt": "3\n4\n",
            "environment/data/more.txt": "x",
            "tests/test.sh": TEST,
            "solution/solve.sh": SOLVE,
            **{name.replace("__", "/").replace("_", "."): text for name, text in files.items()},
        }
        for name, text in whole.items():
            path = (
                tmp_path / "tasks" / "add" / name.replace("environment/Dockerfile.", "environment/Dockerfile")
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755 if path.suffix == ".sh" else 0o644)
        return tmp_path / "tasks"

    return make


async def test_the_solution_earns_one_and_nothing_earns_nothing(bwrap: None, made: Made) -> None:
    [task] = tasks(str(made()))
    async with trial(task) as one:
        found = await one.run('pwd; ls -R /data; cat out/unit; echo "$LIMIT"; ls /tests /logs')
        assert found.stdout.split() == [*["/app/src", "/data:", "more.txt", "numbers.txt", "cm", "9", "9"]]
        assert (await one.solve()).ok and one.read("out/total") == b"7\n"
        assert await one.grade() == {"reward": 1.0}
    async with trial(task) as other:  # nothing of the first attempt is there
        assert (await other.run("cat out/total")).status == 1
        assert await other.grade() == {"reward": 0.0}


async def test_what_an_agent_leaves_behind_forges_no_reward(bwrap: None, made: Made) -> None:
    [task] = tasks(str(made(tests__test_sh="#!/bin/sh\ntrue\n")))
    async with trial(task) as one:
        leave = "mkdir -p /sandbox/logs/verifier /sandbox/tests; echo 1 > /sandbox/logs/verifier/reward.txt"
        await one.run(f"{leave}; mkdir /logs /tests; (sleep 1; echo 1 > /logs/verifier/reward.txt) & true")
        with pytest.raises(NotGraded, match=r"the tests wrote no /logs/verifier/reward\.txt \(status 0"):
            await one.grade()


async def test_the_tests_find_what_an_agent_left_in_tmp(bwrap: None, made: Made) -> None:
    [task] = tasks(str(made(tests__test_sh="#!/bin/sh\ncat /tmp/x/total > /logs/verifier/reward.txt\n")))
    async with trial(task) as one, trial(task) as other:
        assert (await one.run("mkdir /tmp/x; echo 0.5 > /tmp/x/total")).ok
        assert (await one.run("cat /tmp/x/total")).stdout == "0.5\n"
        assert await one.grade() == {"reward": 0.5}
        with pytest.raises(NotGraded):
            await other.grade()


@pytest.mark.skipif(not bubblewrap.PREFIXES, reason="this Python lies in /usr")
async def test_a_working_folder_above_this_python_leaves_it_where_it_is(bwrap: None, made: Made) -> None:
    python = bubblewrap.PREFIXES[0]
    above, below = Path(*Path(python).parts[:2]), f"{python}/work"
    if str(above) in ("/tmp", python):
        pytest.skip("no folder above this Python can be a working folder")
    test = "#!/bin/sh\nls > /logs/verifier/files; cat total > /logs/verifier/reward.txt\n"
    docker = f"FROM x\nWORKDIR {above}\nRUN echo 1 > total\n"
    [task] = tasks(str(made(tests__test_sh=test, environment__Dockerfile_=docker)))
    async with trial(task) as one:
        found = await one.run(["python3", "-c", "import json, sys; print(sys.base_prefix)"])
        assert (found.stdout, found.stderr) == (f"{sys.base_prefix}\n", "")
        first = Path(*Path(python).parts[:3])  # of what bubblewrap mounts on in the working folder
        assert "busy" in (await one.run(f"mv {first} {above}/away && ln -s /etc {first}")).stderr
        assert await one.grade() == {"reward": 1.0}
    with pytest.raises(UsageError, match=f"it writes to {below}, where the Python of this machine lies"):
        tasks(str(made(environment__Dockerfile_=f"FROM x\nWORKDIR {below}\n")))


async def test_files_keep_their_right_to_be_executed(bwrap: None, made: Made) -> None:
    docker = "FROM x\nWORKDIR /app\nCOPY tool.sh tools/\nRUN tools/tool.sh > made\n"
    files = {"environment__Dockerfile_": docker, "environment__tool_sh": "#!/bin/sh\necho tool\n"}
    help_ = "#!/bin/sh\necho 1\n"
    [task] = tasks(
        str(
            made(
                tests__test_sh="#!/bin/sh\n/tests/h.sh > /logs/verifier/reward.txt",
                tests__h_sh=help_,
                **files,
            )
        )
    )
    async with trial(task) as one:
        assert one.read("made") == b"tool\n" and await one.grade() == {"reward": 1.0}


async def test_attempts_at_once_share_nothing(bwrap: None, made: Made) -> None:
    [task] = tasks(str(made()))

    async def one(number: int) -> str:
        async with trial(task) as mine:
            await mine.run(f"echo {number} >> out/total; echo {number} >> /data/numbers.txt")
            await asyncio.sleep(0.1)
            return (await mine.run("cat out/total; tail -1 /data/numbers.txt")).stdout

    assert await asyncio.gather(*map(one, range(4))) == [f"{n}\n{n}\n" for n in range(4)]


@pytest.mark.parametrize(
    ("wrote", "rewards"),
    [
        ('{"reward": 0.5, "style": 1}', {"reward": 0.5, "style": 1.0}),
        ('{"score": 0.25}', {"reward": 0.25}),
        ('{"a": 1, "b": 2}', "a finite number called reward is wanted"),
        ("NaN", "a finite number"),
        ('{"score": Infinity}', "a finite number"),
        ("much", "holds 'much"),
    ],
)
async def test_rewards_have_names(bwrap: None, made: Made, wrote: str, rewards: Any) -> None:
    [task] = tasks(str(made(tests__test_sh=f"#!/bin/sh\necho '{wrote}' > /logs/verifier/reward.json\n")))
    async with trial(task) as one:
        if isinstance(rewards, dict):
            assert await one.grade() == rewards
        else:
            with pytest.raises(NotGraded, match=rewards):
                await one.grade()


async def test_an_agent_plays_exactly_and_its_last_turn_counts(bwrap: None, made: Made) -> None:
    """The command of the last turn that is left is what earns the reward."""
    [task] = tasks(str(made()), max_turns=2)
    said = [json.dumps({"command": "cat /data/numbers.txt"}), json.dumps({"command": "echo 7 > out/total"})]

    def answer(body: dict[str, Any]) -> Any:
        return tool_call("bash", said[sum(one["role"] == "tool" for one in body["messages"])])

    store = SQLiteStore(":memory:")
    try:
        async with ScriptedModelServer(answer) as engine:
            rollout, record, why = await rolled_out(play, task, store, engine)
    finally:
        await store.close()
    assert rollout.status == "succeeded", why
    assert [one.kind for one in verdicts(record).values()] == ["exact"] * 2
    assert {(one.name, one.value) for one in record.rewards} == {("reward", 1.0), ("turns", 2.0)}
    assert record.calls[1].request["messages"][-1]["content"] == "3\n4\n"


class TestTurnLimit(TurnLimit):
    @pytest.fixture(autouse=True)
    def counted(self, bwrap: None, made: Made) -> None:
        """Tests that count the lines which the agent's commands wrote."""
        self.folder = made(tests__test_sh="#!/bin/sh\nwc -l < lines > /logs/verifier/reward.txt\n")

    async def limited(self, turns: int) -> Any:
        [task] = tasks(str(self.folder), max_turns=turns)
        return await self.play(play, task, lambda body: tool_call("bash", {"command": "echo >> lines"}))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"environment__Dockerfile_": "FROM x\nWORKDIR /usr/src/app\n"}, "writes to /usr/src/app"),
        ({"environment__Dockerfile_": "FROM x\n"}, "names no WORKDIR"),
        ({"environment__Dockerfile_": "FROM x\nSHELL ['sh']\nWORKDIR /a"}, "Dockerfile says SHELL"),
        ({"task_toml": "[[steps]]\nname = 'a'\n"}, "several steps"),
        (docker("COPY numbers.txt /numbers.txt"), "copies a file to /numbers.txt, and the root"),
        (docker("COPY data/ /"), "copies to /, and the root"),
        (docker("COPY --from=build /x /app/"), "says COPY --from"),
        (docker("COPY <<EOF /app/x\nfrom a text\nEOF"), "says COPY <<EOF"),
        (docker("ADD https://example.org/x /app/"), "says ADD https://example.org/x"),
        (docker("RUN --mount=type=secret,id=x true"), "says RUN --mount"),
        (docker("WORKDIR $GOPATH/src"), r"says WORKDIR \$GOPATH/src: neither ENV nor ARG .* GOPATH"),
        (docker("ENV A=${B%x}"), "is a form that is not known"),
    ],
)
def test_a_task_that_needs_more_is_refused_by_name(made: Made, files: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=f"Harbor task .*add: .*{said}.*; `harbor run` runs it"):
        tasks(str(made(**files)))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"task_toml": "a = = 1"}, r"task\.toml: this is no TOML: .*line 1, column"),
        (toml("verifier.timeout_sec = 'soon'"), r"task\.toml\.verifier\.timeout_sec: .*number.* not 'soon'"),
        (toml("agent.timeout_sec = -5"), r"task\.toml\.agent\.timeout_sec: .*greater than 0, not -5"),
        (toml("environment = 'x'"), r"task\.toml\.environment: .*dictionary"),
        (toml("environment.env = {A = 1}"), r"task\.toml\.environment\.env\.A: .*string, not 1"),
        (toml("environment.memory_mb = -5"), r"task\.toml\.environment\.memory_mb: .*equal to 16, not -5"),
        (toml("environment.memory = 'much'"), r"task\.toml\.environment\.memory: .*'2G', not 'much'"),
        (
            toml("environment.workdir = 'app'"),
            r"task\.toml\.environment\.workdir: .*absolute path, not 'app'",
        ),
        (toml("environment = {storage = '2G', storage_mb = 3}"), "storage and storage_mb, differ"),
        (toml("environment.env = {A = '${SOME_API_KEY:-none}'}"), "A asks for SOME_API_KEY: no agent gets"),
        (
            toml("verifier.env = {A = '${AGL_UNSET}'}"),
            r"verifier\.env\.A .* AGL_UNSET, which is not set: set it",
        ),
        *(
            (docker(line), rf"environment/Dockerfile: {line.splitlines()[0]}: {said}")
            for line, said in (
                ("ENV", "ENV needs words of the form NAME=value"),
                ("ENV A=1 B", "ENV needs words of the form NAME=value"),
                ("ENV A='b", "a quote or a brace stays open"),
                ("COPY", "COPY needs what to copy, and where to"),
                ("COPY ../x /a", r"\.\./x is not in the folder environment"),
                ("WORKDIR", "WORKDIR needs a path"),
            )
        ),
        (docker('COPY ["none.txt", "/app/"]'), "none.txt is not in the folder environment"),
        (docker("RUN <<EOF\ntouch x"), "environment/Dockerfile: the text after <<EOF needs a line EOF"),
    ],
)
def test_a_folder_that_is_wrong_is_refused_when_it_is_loaded(
    made: Made, files: dict[str, str], said: str
) -> None:
    with pytest.raises(UsageError, match=f"Harbor task .*add: .*{said}"):
        tasks(str(made(**files)))


async def test_lines_that_cannot_run_here_are_named(bwrap: None, made: Made, tmp_path: Path) -> None:
    [task] = tasks(str(made(**docker("RUN apt-get install -y jq"))))
    with pytest.raises(UsageError, match="RUN apt-get install"):
        async with trial(task):
            pass
    with pytest.raises(UsageError, match="holds no task folders"):
        tasks(str(tmp_path))


@pytest.mark.parametrize("sizes", ["memory = '128M'\nstorage = '10M'", "memory_mb = 128\nstorage_mb = 10"])
async def test_sizes_have_two_forms(bwrap: None, made: Made, sizes: str) -> None:
    [task] = tasks(str(made(**toml(f"[environment]\n{sizes}"))))
    async with trial(task) as one:
        assert (await one.run("head -c 5000000 /dev/zero > small")).ok
        eat = ["python3", "-c", "print(len(bytearray(int(input()))))"]
        assert (await one.run(eat, stdin="20000000")).ok and not (await one.run(eat, stdin="200000000")).ok
        assert (await one.run("head -c 20000000 /dev/zero > large")).ended == "disk"


def test_keys_without_effect_are_named_once(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    keys = "allow_internet = false\ncpus = 2\nmemmory_mb = 4096"
    root = made(**toml(f"[environment]\n{keys}\n[verifier]\nenvironment_mode = 'shared'"))
    (root / "add").rename(root / "one")
    made(**toml(f"[environment]\n{keys}"))
    tasks(str(root))
    said = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert said == [
        f"task.toml: environment.{key} has no effect in a sandbox (tasks: 2; the first: add)"
        for key in ("cpus", "memmory_mb")
    ]


async def test_a_variable_of_this_process_is_given_where_the_task_names_it(
    bwrap: None, made: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As Harbor does: a whole value, with a default for one that is not set; who runs the task is told."""
    monkeypatch.setenv("AGL_KNOWN", "7")
    monkeypatch.setenv("AGL_OTHER", "8")
    text = "[environment.env]\nA = '${AGL_KNOWN}'\n[verifier.env]\nB = '${AGL_UNSET:-9}'\nC = 'x${AGL_OTHER}'"
    test = '#!/bin/sh\necho "{\\"reward\\": $A, \\"b\\": $B, \\"c\\": ${#C}}" > /logs/verifier/reward.json\n'
    [task] = tasks(str(made(**toml(text), tests__test_sh=test)))
    assert [record.getMessage().partition("toml: ")[2] for record in caplog.records] == [
        "environment.env is given the variable AGL_KNOWN of this process (tasks: 1; the first: add)"
    ]
    async with trial(task) as one:
        assert (await one.run('echo "$A$B$AGL_KNOWN"')).stdout == "7\n"
        assert await one.grade() == {"reward": 7.0, "b": 9.0, "c": float(len("x${AGL_OTHER}"))}


async def test_variables_of_a_dockerfile_are_expanded(bwrap: None, made: Made) -> None:
    text = """ARG BASE=slim
FROM x:$BASE
ARG BASE
ARG NAME=sub EMPTY
ENV H=/app PATH="/app/bin:$PATH"
ENV A=$H/a B='$H' C="\\$H ${EMPTY:-two words}" D=${H:+set}${NONE:-${NAME}} E=x$NONE
ENV OLD the $NAME
WORKDIR $H/${NAME}
COPY tool.sh ${H}/bin/tool
RUN echo "$NAME $BASE $HERE" > built
ENV HERE=late
"""
    files = {"environment__Dockerfile_": text, "environment__tool_sh": "#!/bin/sh\necho tool\n"}
    test = "#!/bin/sh\ntool && echo 1 > /logs/verifier/reward.txt\n"
    [task] = tasks(str(made(**files, **toml("environment.env = {A = 'own'}"), tests__test_sh=test)))
    async with trial(task) as one:
        assert one.task.workdir == "/app/sub" and one.read("built").split()[:2] == [b"sub", b"slim"]
        shown = await one.run('pwd; tool; echo "$A|$B|$C|$D|$E|$OLD|$NAME"')
        assert shown.stdout.splitlines() == ["/app/sub", "tool", "own|$H|$H two words|setsub|x|the sub|"]
        assert await one.grade() == {"reward": 1.0}  # the tests find programs at both ends of PATH


async def test_the_forms_of_copy_and_run(bwrap: None, made: Made) -> None:
    text = r"""COPY --chown=root:root --chmod=755 numbers.txt /app/
COPY ["numbers.txt", "data/more.txt", "/app/two words/"]
COPY *.txt d*a /data/
COPY data/more.txt /app
RUN <<EOF
touch a
# no comment of the Dockerfile's

echo "$PWD" > b
EOF
RUN <<-'EOF'
	#!/usr/bin/env python3
	open("c", "w").write(str(1 << 2))
	EOF
RUN cat <<one - <<two > d
first
one
$PWD
two
RUN ["touch", "$HOME"]
RUN echo par\
# between
t > e"""
    [task] = tasks(str(made(**docker(text))))
    async with trial(task) as one:
        listed = await one.run("ls /app '/app/two words' /data; cat b c d e")
        names = ["$HOME", "a", "b", "c", "d", "e", "more.txt", "numbers.txt", "two words"]
        assert listed.stdout.split("\n\n")[0].splitlines() == ["/app:", *names]
        assert listed.stdout.split("\n\n")[1].splitlines() == ["/app/two words:", "more.txt", "numbers.txt"]
        assert listed.stdout.split("\n\n")[2].splitlines()[:3] == ["/data:", "more.txt", "numbers.txt"]
        assert listed.stdout.endswith("/app\n4/app\npart\n")
        assert (await one.run("test -x numbers.txt -a ! -x more.txt")).ok
