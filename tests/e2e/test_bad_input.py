"""Configurations, data and files that cannot be used, through the command itself: one line that says what,
where and what to do; exit status 2; no traceback, no hang, and no run begun that could not go on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentlightning import cli

POLICY = Path(__file__).parents[2] / "examples" / "calc_x" / "policy"
MODULE = "agent_of_bad_input"
SOURCE = """
import openai

async def solve(task, llm):
    messages = [{"role": "user", "content": str(task)[:50]}]
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        await client.chat.completions.create(model=llm.model, messages=messages, max_tokens=2)
    return 1.0

class NeedsArguments:
    def __init__(self, x): ...
    async def run(self, task): ...

def no_tasks(): return []
def raising(): raise KeyError("column 'q'")
def not_plain(): return [{"q": 1}, {"q": {1, 2}}]
def nan(): return [{"q": float("nan")}]
value = 3
"""
GONE = object()
"""Instead of a value: the key is missing."""
Agl = Callable[..., tuple[int, str]]


def config(folder: Path, changes: dict[str, Any]) -> Path:
    """A configuration that would run for a second, with ``changes`` by dotted key."""
    (folder / f"{MODULE}.py").write_text(SOURCE)
    if not (folder / "tasks.jsonl").exists():
        (folder / "tasks.jsonl").write_text('{"q": 1}\n{"q": 2}\n')
    whole: dict[str, Any] = {
        "agent": {"target": f"{MODULE}:solve", "concurrency": 4},
        "training": {"steps": 1, "batch_size": 1, "recipe": {"group_size": 2}},
        "environment": {"train": {"file": "tasks.jsonl"}},
        "backend": {"policy": str(POLICY), "options": {"threads": 1, "engine": "thread", "max_len": 128}},
        "output": "runs",
        "pythonpath": ["."],
        "trackers": ["files"],
    }
    for dotted, value in changes.items():
        *parents, last = dotted.split(".")
        section = whole
        for part in parents:
            section = section.setdefault(part, {})
        if value is GONE:
            del section[last]
        else:
            section[last] = value
    path = folder / "run.yaml"
    path.write_text(json.dumps(whole))
    return path


@pytest.fixture
def agl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Agl]:
    """``agl(*arguments)``: the command in this process; exit status and what it wrote to stderr."""

    def run(*arguments: str | Path) -> tuple[int, str]:
        sys.modules.pop(MODULE, None)
        monkeypatch.setattr(sys, "argv", ["agl", *map(str, arguments)])
        monkeypatch.setattr(sys, "path", list(sys.path))
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        else:
            code = 0
        assert isinstance(code, int)
        return code, capsys.readouterr().err

    yield run
    sys.modules.pop(MODULE, None)


def refused(said: tuple[int, str], *parts: str) -> None:
    """The command ended with status 2, and its last line begins so and has all the parts."""
    code, err = said
    last = err.rstrip("\n").splitlines()[-1] if err.strip() else ""
    assert code == 2 and last.startswith("agl: "), err
    assert all(part in last for part in parts) and "Traceback" not in err, err


def nothing_begun(folder: Path) -> None:
    """A start that is refused leaves nothing behind."""
    assert not (folder / "runs").exists()


CONFIGURATIONS: dict[str, list[tuple[dict[str, Any], tuple[str, ...]]]] = {
    "keys and types": [
        ({"agent.targett": "x"}, ("run.yaml: agent.targett: ", "Did you mean 'target'?")),
        ({"zzz": 1}, ("run.yaml: zzz: ", "Known here: agent, training, environment")),
        ({"environment.train.fil": "x"}, ("environment.train.fil: ", "Did you mean 'file'?")),
        ({"agent": GONE}, ("run.yaml: agent: Field required",)),
        ({"backend": GONE}, ("run.yaml: backend: Field required",)),
        ({"agent": 3}, ("run.yaml: agent: Input should be",)),
        ({"training": []}, ("run.yaml: training: Input should be",)),
        ({"training.steps": "many"}, ("training.steps: Input should be a valid integer",)),
        ({"training.steps": -1}, ("training.steps: Input should be greater than or equal to 0",)),
        ({"training.batch_size": 0}, ("training.batch_size: ", "greater than or equal to 1")),
        ({"training.seed": 2**80}, ("training.seed: Input should be less than",)),
        ({"agent.concurrency": -1}, ("agent.concurrency: ", "greater than or equal to 0")),
        ({"agent.timeout_seconds": -1}, ("agent.timeout_seconds: ", "greater than 0")),
        ({"agent.max_attempts": 0}, ("agent.max_attempts: ", "greater than or equal to 1")),
        ({"agent.isolation": "thread"}, ("agent.isolation: ", "'inline' or 'process'")),
        ({"agent.select": "re:("}, ("agent.select: ", "not a regular expression")),
        ({"pythonpath": "."}, ("pythonpath: Input should be a valid list",)),
        ({"environment.train.limit": 0}, ("environment.train.limit: ", "equal to 1")),
    ],
    "targets and names": [
        ({"agent.target": MODULE}, ("agent.target: ", "must be written module:object")),
        ({"agent.target": "no_such_module:f"}, ("agent.target: cannot import", "pythonpath, or install it")),
        ({"agent.target": f"{MODULE}:solv"}, ("agent.target: ", "has no 'solv'")),
        ({"agent.target": f"{MODULE}:value"}, ("agent.target: 3 is no agent: give a function",)),
        ({"agent.target": f"{MODULE}:NeedsArguments"}, ("agent.target: ", "give an object of it")),
        ({"agent.name": "../x"}, ("agent.name '../x'", "use letters, digits")),
        ({"agent.name": ""}, ("agent.name ''", "use letters, digits")),
        ({"agent.adapters": "autogne"}, ("no adapter is called 'autogne'", "Did you mean 'autogen'?")),
        ({"training.algorithm": "grop"}, ("no recipe is called 'grop'", "Did you mean 'grpo'?")),
        ({"backend.driver": "locla"}, ("no driver is called 'locla'", "Did you mean 'local'?")),
        ({"trackers": ["fils"]}, ("no tracker is called 'fils'", "Did you mean 'files'?")),
    ],
    "failure and quorum": [
        ({"training.failure": {"tired": 0}}, ("training.failure: unknown kind 'tired'; use one of ",)),
        ({"training.failure": {"timeout": "maybe"}}, ("training.failure['timeout'] = 'maybe': give a",)),
        ({"training.failure": {"timeout": float("nan")}}, ("training.failure['timeout']", "give a reward")),
        ({"training.failure": 3}, ("training.failure: Input should be a valid dictionary",)),
        ({"training.quorum": {"k": 0}}, ("training.quorum.k: ", "or equal to 1, not 0")),
        ({"training.quorum": {"k": 9}}, ("quorum.k = 9: more than the 2 rollouts of a group",)),
        ({"training.quorum": {"kk": 9}}, ("training.quorum.kk: ", "Did you mean 'k'?")),
        ({"training.quorum": {"k": 1, "deadline": -1}}, ("training.quorum.deadline: ", "than 0, not -1")),
        ({"training.async_steps": 1}, ("async_steps = 1 with recipe.max_staleness = 0", "importance_cap")),
        ({"training.async_steps": -1}, ("training.async_steps: Input should be greater than or equal to 0",)),
        ({"training.dynamic_sampling": 2}, ("dynamic_sampling = 2 without recipe.filter_zero_std_groups",)),
        ({"training.dynamic_samplin": 2}, ("training.dynamic_samplin: ", "Did you mean 'dynamic_sampling'?")),
    ],
    "recipe": [
        ({"training.recipe": {"group_sise": 2}}, ("training.recipe: ", "Did you mean 'group_size'?")),
        ({"training.recipe": {"group_size": "x"}}, ("training.recipe: ", "group_size")),
        ({"training.recipe": {"group_size": 0}}, ("recipe.group_size = 0: a task needs at least one",)),
        ({"training.recipe": {"temperature": -1}}, ("recipe.temperature = -1.0: ",)),
        ({"training.recipe": {"credit": "nope"}}, ("recipe.credit: no rule 'nope'; known: broadcast",)),
        ({"training.recipe": {"baseline": "nope"}}, ("recipe.baseline: no baseline 'nope'; known: batch",)),
        ({"training.recipe": {"gamma": 7}}, ("recipe.gamma = 7.0: must lie in [0, 1]",)),
        ({"training.recipe": {"epochs": 0}}, ("epochs = 0: must be at least 1",)),
        ({"training.recipe": {"kl": -1}}, ("kl = -1.0: must be finite, and not negative",)),
        ({"training.recipe": {"critic": True}}, ("critic",)),
    ],
    "driver and places": [
        ({"backend.options": {"thread": 1}}, ("no option 'thread'. Did you mean 'threads'?",)),
        ({"backend.options": {"threads": -1}}, ("threads must be at least 1, got -1",)),
        ({"backend.options": {"lr": "fast"}}, ("options of the local driver: ", "lr")),
        ({"backend.policy": "nowhere"}, ("nowhere: there is no such folder",)),
        ({"backend.policy": "tasks.jsonl"}, ("tasks.jsonl: there is no such folder",)),
        ({"output": "tasks.jsonl"}, ("cannot make the run's folder", "choose another `output`")),
        ({"store": "tasks.jsonl/s.sqlite"}, ("the store's folder cannot be made", "choose another place")),
        ({"store": "run.yaml"}, ("run.yaml cannot be opened as a store: file is not a database",)),
        ({"store": "ftp://x"}, ("no store is registered for ftp://; give a file",)),
    ],
    "data": [
        ({"environment.train": GONE}, ("environment.train: ", "there are no tasks to train on; give file")),
        ({"environment.train": {}}, ("environment.train: give either file or target",)),
        ({"environment.train": {"file": "gone.jsonl"}}, ("environment.train.file: there is no file",)),
        ({"environment.train": {"file": "."}}, ("environment.train.file: ", "is a folder: give a file")),
        ({"environment.train": {"target": f"{MODULE}:no_tasks"}}, ("train: the dataset is empty",)),
        ({"environment.train": {"target": f"{MODULE}:raising"}}, ("raised KeyError", f"{MODULE}.py:15")),
        ({"environment.train": {"target": f"{MODULE}:value"}}, ("is a int, not a function",)),
        ({"environment.train": {"target": f"{MODULE}:not_plain"}}, ("task 1 is a set (at .q); give",)),
        ({"environment.train": {"target": f"{MODULE}:nan"}}, ("task 0 is the float nan (at .q)",)),
        ({"environment.headroom": {"oracle": "x"}}, ("environment.headroom.oracle: ", "module:object")),
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.plugins
@pytest.mark.parametrize("group", CONFIGURATIONS)
def test_a_configuration_that_cannot_be_used(group: str, agl: Agl, tmp_path: Path) -> None:
    for changes, parts in CONFIGURATIONS[group]:
        refused(agl("train", "-c", config(tmp_path, changes)), *parts)
    nothing_begun(tmp_path)


@pytest.mark.plugins
def test_a_file_that_is_no_configuration(agl: Agl, tmp_path: Path) -> None:
    path = config(tmp_path, {})
    for text, parts in {
        b"agent: [": ("run.yaml: not valid YAML",),
        b"- 1": ("run.yaml: the file must hold sections",),
        b"": ("run.yaml: the file must hold sections",),
        b"a: \xff\xfe": ("run.yaml: not valid YAML",),
        b"a: !!python/object/apply:os.system ['x']": ("run.yaml: not valid YAML",),
    }.items():
        path.write_bytes(text)
        code, err = agl("train", "-c", path)
        assert code == 2 and err.startswith("agl: ") and "Traceback" not in err, err
        assert all(part in err for part in parts), err
    refused(agl("train", "-c", tmp_path), "cannot be read: Is a directory")
    refused(agl("train", "-c", tmp_path / "none.yaml"), "none.yaml: there is no such file")
    nothing_begun(tmp_path)


@pytest.mark.plugins
def test_data_that_is_no_json(agl: Agl, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    for data, parts in {
        b'{"q": 1}\n{"q": \n': ("tasks.jsonl:2: not valid JSON",),
        b'{"q": NaN}\n': ("tasks.jsonl:1: not valid JSON",),
        b'{"q": "\xff"}\n': ("cannot be read", "utf-8"),
        b"\n\n": ("environment.train: the dataset is empty",),
        b"not json at all": ("tasks.jsonl:1: not valid JSON",),
        b"[" * 100_000: ("tasks.jsonl:1: not valid JSON",),
        b'{"q": 1e999}\n': ("tasks.jsonl:1: not valid JSON: Number out of range",),
        b'{"q": 123456789012345678901234567890}\n': ("task 0 is an int of more than 64 bits (at .q)",),
    }.items():
        tasks.write_bytes(data)
        refused(agl("train", "-c", config(tmp_path, {})), *parts)
    nothing_begun(tmp_path)


@pytest.mark.plugins
def test_options_of_the_command(agl: Agl, tmp_path: Path) -> None:
    path = config(tmp_path, {})
    for arguments, parts in {
        ("--set", "nonsense"): ("--set 'nonsense': write key=value",),
        ("--set", "training.stepz=3"): ("training.stepz: ", "Did you mean 'steps'?"),
        ("--set", "training.steps.x=3"): ("training.steps.x: 'steps' is a value, not a section",),
        ("--set", "=3"): ("run.yaml: : ",),
        ("--run", "../x"): ("run '../x': use letters, digits",),
        ("--run", ""): ("run '': use letters",),
        ("--resume",): ("nothing to resume", "name one with --run, or begin one"),
        ("--run", "r", "--resume"): (
            "nothing to resume: ",
            "holds no run r; to begin it, leave --resume out",
        ),
    }.items():
        refused(agl("train", "-c", path, *arguments), *parts)
    code, err = agl("train", "-c", path, "--set", "training.steps={")
    assert code == 2 and err.startswith("agl: --set 'training.steps={': the value is not valid YAML"), err
    for arguments in (("--sett", "x"), ("--steps", "many"), ("--seed",)):
        code, err = agl("train", "-c", path, *arguments)
        assert code == 2 and "Traceback" not in err, err
    nothing_begun(tmp_path)


@pytest.mark.plugins
@pytest.mark.slow
def test_a_run_goes_on_only_as_what_it_was(agl: Agl, tmp_path: Path) -> None:
    """Also: tasks that are huge, and twice the same, are tasks."""
    huge = json.dumps({"q": "x" * 10_000_000})
    (tmp_path / "tasks.jsonl").write_text(f'{huge}\n{{"q": 1}}\n{{"q": 1}}\n')
    path = config(tmp_path, {"training.batch_size": 3, "backend.options.save_every": 1})
    code, err = agl("train", "-c", path, "--run", "r")
    assert code == 3 and "This run learned nothing" in err, err  # its agent is always right
    summary = json.loads((tmp_path / "runs" / "r" / "summary.json").read_text())
    assert summary["totals"]["rollouts"] == 6 and summary["totals"]["rollouts_failed"] == 0
    assert summary["totals"]["calls"] == 6 and summary["accounts"] == {}
    refused(agl("train", "-c", path, "--run", "r"), "exists: go on with it (--resume)")
    again = ("train", "-c", path, "--run", "r", "--resume")
    refused(agl(*again, "--seed", "7"), "run r cannot go on: seed was 1 when it began and is 7")
    refused(
        agl(*again, "--set", "training.recipe.group_size=3"),
        "cannot go on: recipe.group_size was 2 when it began and is 3",
    )
    (tmp_path / "tasks.jsonl").write_text('{"q": 1}\n')
    refused(agl(*again), "run r cannot go on: data.train was ", "or begin another run")
    (tmp_path / "runs" / "r" / "store.sqlite").unlink()
    refused(agl(*again), "its store knows no run r")
