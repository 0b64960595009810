"""A sandbox as Python code uses it: what a command gets, what it gives back, what ends it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from agl_programs.sandbox import bubblewrap, files, watch
from agl_programs.sandbox.box import OUTPUT_BYTES, Sandbox
from agl_programs.sandbox.run import NotStarted

from agentlightning.types import UsageError
from plugins.programs.tests.sandbox import run as trial
from plugins.programs.tests.sandbox.escapes import ESCAPES

SAY = "import json, os, sys; print(json.dumps([sys.stdin.read(), dict(os.environ), sorted(os.listdir('.'))]))"
FOUND_OUTSIDE = (
    "loopback", "other_loopback", "abstract_socket", "socket_in_a_folder", "files_of_the_run",
    "folders_of_the_run", "own_environment", "other_processes", "links_out",
)  # fmt: skip
USUAL = (
    "loopback", "abstract_socket", "files_of_the_run", "links_out", "open_files", "other_processes",
    "daemons", "new_namespaces", "memory_of_many", "disk_without_names", "disk_in_a_closed_folder",
)  # fmt: skip
"""Ways that are tried each time; the others are slow tests."""


async def test_a_command_gets_its_words_files_input_and_variables_and_nothing_else(
    bwrap: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "of the run")
    async with Sandbox() as box:
        result = await box.run(
            ["python3", "-c", SAY], files={"a/b.txt": "x", "c": b"\0"}, stdin="3 4", env={"MINE": "1"}
        )
        stdin, variables, found = json.loads(result.stdout)
        assert (result.ok, result.status, result.ended, result.dropped) == (True, 0, "", 0)
        assert stdin == "3 4" and found == ["a", "c"] and variables.pop("MINE") == "1"
        assert variables.keys() == {"PATH", "HOME", "TMPDIR", "LANG", "USER", "PWD"}
        again = await box.run("cat a/b.txt; echo late >&2; echo new > d; exit 3")
        assert (again.status, again.stdout, again.stderr) == (3, "x", "late\n") and not again.ok
        assert box.read("d") == b"new\n"
        folder = box._folder
    assert folder is not None and not folder.exists()
    alone = await Sandbox().run("ls; kill -SEGV $$")
    assert (alone.status, alone.stdout) == (-11, "")
    assert (await Sandbox().run(["no-such-program"])).status == 127


async def test_of_long_output_the_end_is_kept(bwrap: None) -> None:
    result = await Sandbox().run("head -c 3000000 /dev/zero; echo end")
    assert result.stdout.endswith("end\n") and len(result.stdout) == OUTPUT_BYTES
    assert result.dropped == 3_000_004 - OUTPUT_BYTES


async def test_each_sandbox_is_alone_and_a_cancelled_one_leaves_nothing(bwrap: None) -> None:
    async def one(number: int) -> str:
        result = await Sandbox().run(
            f"echo {number} > mine; sleep 0.2; ls /tmp/*/../.. | wc -l; cat mine; ls -d /proc/[0-9]* | wc -l"
        )
        return result.stdout

    found = [text.split() for text in await asyncio.gather(*map(one, range(6)))]
    assert [one[1] for one in found] == list("012345") and all(int(one[2]) < 7 for one in found)
    mark = f"cancelled-{os.getpid()}"
    for wait in (0.0, 0.01, 0.4):
        running = asyncio.create_task(Sandbox().run(["sh", "-c", "setsid sleep 600 & sleep 600", mark]))
        await asyncio.sleep(wait)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not trial.marked(mark)


async def test_a_folder_leads_nowhere(bwrap: None, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("word")
    async with Sandbox() as box:
        out = f"ln -s {tmp_path}/secret link; ln -s {tmp_path} folder; mkfifo pipe"
        await box.run(f"{out}; mkdir d; ln -s ../ok d/in; touch ok")
        for name in ("link", "folder/secret", "pipe", "d"):
            with pytest.raises(OSError):
                box.read(name)
        for name in ("../x", "/etc/passwd", "", "d/../../x"):
            with pytest.raises(ValueError, match="inside the sandbox's folder"):
                box.read(name)
        box.write("link", "mine")  # takes the place of the link
        with pytest.raises(OSError):
            box.write("folder/secret", "mine")
        assert (tmp_path / "secret").read_text() == "word" and box.read("link") == b"mine"
        assert box._folder is not None and files.only_own_files(box._folder) == 2
        assert sorted(os.listdir(box._folder)) == ["d", "link", "ok"]
        with pytest.raises(ValueError, match="more than 2 bytes"):
            box.read("link", limit=2)


async def test_the_limit_of_processor_time_is_named(bwrap: None) -> None:
    result = await Sandbox(cpu_seconds=1, seconds=60).run("while :; do :; done")
    assert (result.ended, result.ok) == ("cpu", False)


def test_what_it_is_to_read_must_be_there(bwrap: None, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"sandbox\.read: there is no .*nowhere"):
        Sandbox(read=[str(tmp_path / "nowhere")])


@pytest.mark.parametrize("root", ["/", "//", "/usr/..", "/proc/self/root"])
def test_it_does_not_read_the_whole_machine(bwrap: None, root: str) -> None:
    with pytest.raises(UsageError, match=r"sandbox\.read: .* is the root of this machine.*: name the files"):
        Sandbox(read=[root])


async def test_a_sandbox_that_does_not_start_gives_no_result(
    bwrap: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = bubblewrap._told
    monkeypatch.setattr(bubblewrap, "_told", lambda *given: {**told(*given), "folder": "/nowhere"})
    with pytest.raises(
        NotStarted, match=r"did not start, so its command never ran: Traceback(.|\n)*/nowhere"
    ):
        await Sandbox().run("true")
    monkeypatch.undo()
    async with Sandbox() as box:
        box.add_folder("there")
        box.places = {"/there/is": "there"}
        assert (await box.run("pwd")).stdout == "/there/is\n"
        box.places = {"/there/is": "nowhere"}
        with pytest.raises(NotStarted, match="never ran: bwrap: Can't find source path"):
            await box.run("true")


async def test_commands_of_a_block_share_tmp_and_others_do_not(bwrap: None) -> None:
    python = sorted({Path(one).parts[2] for one in bubblewrap.PREFIXES if one.startswith("/tmp/")})
    async with Sandbox(disk="20MB") as box, Sandbox() as other:
        await box.run("echo mine > /tmp/a; echo more > ~/b; ln -s /etc /tmp/etc")
        assert (await box.run("cat /tmp/a ~/b; stat -c %a /tmp; ls /sandbox")).stdout == "mine\nmore\n1777\n"
        assert (await other.run("ls /tmp")).stdout.split() == sorted(["home", *python])
        tmp = box._tmp
        assert (
            tmp is not None and (tmp / "a").read_text() == "mine\n" and tmp.parent.stat().st_mode & 0o77 == 0
        )
        result = await box.run("for i in 1 2 3 4; do head -c 10M /dev/zero > /tmp/$i; done; sleep 60")
        assert result.ended == "disk"
    assert not tmp.exists() and not tmp.parent.exists()


async def test_processes_of_the_machine_are_not_counted(bwrap: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a sandbox stands, its first process sees those of the machine."""
    monkeypatch.setattr(watch, "INTERVAL", 0.0005)
    found = [(await Sandbox(processes=2).run("true")).ended for _ in range(20)]
    assert found == [""] * 20


async def test_its_input_is_not_counted_as_its_disk(bwrap: None) -> None:
    result = await Sandbox(disk="2MB").run("sleep 0.3; wc -c", stdin="x" * 8_000_000)
    assert (result.stdout, result.ended) == ("8000000\n", "")


async def test_no_command_moves_what_the_next_ones_mounts_come_from(bwrap: None, tmp_path: Path) -> None:
    """bubblewrap follows links: a link in a place of a sandbox would lead to the files of this machine."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "secret").write_text("word")
    async with Sandbox() as box:
        for name in ("root-app", "root-app/deep", "root-app/deep/sub"):
            box.add_folder(name)
        box.places = {"/app/deep/sub": "root-app/deep/sub", "/app": "root-app"}
        for path in (
            "/sandbox/root-app",
            "/sandbox/root-app/deep",
            "/sandbox/root-app/deep/sub",
            "/app/deep/sub",
        ):
            moved = await box.run(f"cd /; mv {path} {path}-away && ln -s {tmp_path} {path}")
            assert moved.status != 0, path
            assert "secret" not in (await box.run("ls -R /app /sandbox")).stdout, path


async def test_no_command_moves_what_the_next_ones_mounts_go_to(bwrap: None) -> None:
    """bubblewrap makes the folders that it mounts on, and follows links to them: as root, anywhere."""
    with tempfile.TemporaryDirectory(dir="/tmp") as given:
        data = Path(given) / "some" / "data"
        data.mkdir(parents=True)
        (data / "shown").write_text("word")
        Path(given).chmod(0o755)
        async with Sandbox(read=[str(data)]) as box:
            for _ in range(2):
                found = await box.run(f"cat {data}/shown; mv {given} /tmp/x; echo x > {given}/y")
                assert found.stdout == "word" and "busy" in found.stderr and "Read-only" in found.stderr


async def test_it_reads_what_it_is_told_to_and_writes_none_of_it(bwrap: None, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("shown")
    tmp_path.chmod(0o755)
    box = Sandbox(read=[str(tmp_path / "data")])
    result = await box.run(f"cat {tmp_path}/data; ls {tmp_path}; echo x > {tmp_path}/data")
    assert result.stdout == "showndata\n" and result.status != 0
    assert (tmp_path / "data").read_text() == "shown"


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"memory": "1MB"}, "memory"),
        ({"seconds": 0}, "seconds"),
        ({"processes": 0}, "processes"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_limit_that_is_none_is_named(limits: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=f"Sandbox: {told}"):
        Sandbox(**limits)


def test_without_bubblewrap_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    bubblewrap.check.cache_clear()
    with pytest.raises(UsageError, match="apt-get install bubblewrap"):
        Sandbox()
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho no permissions for namespaces >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(UsageError, match="no permissions for namespaces"):
        Sandbox()
    with pytest.raises(UsageError, match="podman or docker is not installed here"):
        Sandbox(image="python:3")
    bubblewrap.check.cache_clear()


async def test_an_image_gets_the_same_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = tmp_path / "bin" / "podman"
    engine.parent.mkdir()
    engine.write_text(
        f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv, dict(os.environ)]))\n"
    )
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{engine.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MY_TOKEN", "of the run")
    box = Sandbox(image="tests:1", memory="64MB", processes=9, disk="8MB", cpu_seconds=3)
    result = await box.run(["pytest"], env={"MINE": "1"})
    words, variables = json.loads(result.stdout)
    assert words[-2:] == ["tests:1", "pytest"] and "MY_TOKEN" not in variables and variables["MINE"] == "1"
    asked = {"--network=none", "--read-only", "--memory=64000000", "--pids-limit=10", "--cap-drop=ALL"}
    asked |= {"--security-opt=no-new-privileges", "--ulimit=fsize=8000000:8000000", "--ulimit=cpu=3"}
    assert asked <= {*words}


# ----------------------------------------------------------------------------------------- the ways out
@pytest.mark.parametrize(
    "name", [name if name in USUAL else pytest.param(name, marks=pytest.mark.slow) for name in ESCAPES]
)
async def test_no_way_leads_out(bwrap: None, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    mark, word = f"mark-{os.getpid()}-{name}", f"word-{os.getpid()}-{name}"
    monkeypatch.setenv("AGL_TRIAL_SECRET", word)
    with trial.outside(word, mark) as facts:
        assert await trial.attempt(name, facts) == (None, 0, None)


def test_without_a_sandbox_the_same_ways_lead_to_what_there_is(tmp_path: Path) -> None:
    """The escapes themselves are tried: on the open machine they find what the judge holds."""
    mark, word = f"mark-open-{os.getpid()}", f"word-open-{os.getpid()}"
    with trial.outside(word, mark) as facts:
        told = json.dumps({**facts, "other": str(tmp_path)})
        for name in FOUND_OUTSIDE:
            done = subprocess.run(
                [sys.executable, trial.HERE / "escapes.py", name, told],
                capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "A_SECRET": word},
            )  # fmt: skip
            assert json.loads(done.stdout.splitlines()[-1]) is not None, (name, done.stderr)


async def test_a_port_that_is_bound_inside_is_free_outside(bwrap: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        source = f"import socket; socket.create_server(('127.0.0.1', {port})); print('bound')"
        assert (await Sandbox().run(["python3", "-c", source])).stdout == "bound\n"


def test_a_sandbox_runs_on_the_loop_of_any_thread(bwrap: None) -> None:
    found: list[str] = []

    def work() -> None:
        found.append(asyncio.run(Sandbox().run("echo here")).stdout)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["here\n"] * 3
