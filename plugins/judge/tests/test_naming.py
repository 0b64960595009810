"""How a run's file and the command line name group rewards and judges, and what is refused there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from agl_testing import ScriptedModelServer
from typer import Typer
from typer.testing import CliRunner

import agentlightning as agl
from agentlightning.train.config import FILE, build as build_config
from agentlightning.types.base import ConfigError
from agl_judge.command import register
from agl_judge.graders.relative import Agree, Rank, Tournament
from agl_judge.graders.rubric import Rubric
from agl_judge.group import GroupFunction
from agl_judge.openai_graders.grader import OpenAIGrader
from agl_judge.rescoring import digest_of
from agl_judge.section import make_grader
from plugins.judge.tests.conftest import candidates, plugins

HERE = Path(__file__).parent
GRADER = {
    "type": "string_check",
    "name": "same",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{item.a}}",
}


@pytest.fixture
def grading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_grading.py").write_text(
        "from agl_judge.group import group_reward\n"
        "def plain(group): return [0.0] * len(group.rollouts)\n"
        "@group_reward(relative=False, judges=['j'])\nasync def marked(group): return [0.0]\n"
        "def make(scale): return lambda group: [scale] * len(group.rollouts)\n"
        "def last(text): return text[-1:]\n"
        "def right(task, one): return 1.0\n"
    )
    (tmp_path / "grader.json").write_text(json.dumps(GRADER))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_grading", raising=False)
    return tmp_path


def test_ours_are_named_with_their_options(grading: Path) -> None:
    assert make_grader("agree", grading) == Agree()
    assert make_grader({"rank": {"judge": "j", "values": "ranks"}}, grading) == Rank("j", values="ranks")
    assert make_grader({"tournament": {"judge": "j", "opponents": 2}}, grading) == Tournament(
        "j", opponents=2
    )
    read = make_grader({"agree": {"read": "my_grading:last"}}, grading)
    assert isinstance(read, Agree) and read.read is not None and read.read("is 5") == "5"
    criteria = {"kind": "It is kind.", "right": {"check": "my_grading:right", "weight": 2.0}}
    rubric = make_grader({"rubric": {"judge": "j", "criteria": criteria}}, grading)
    assert isinstance(rubric, Rubric) and [one.weight for one in rubric.criteria] == [1.0, 2.0]
    graded = make_grader({"grader": {"file": "grader.json"}}, grading)
    assert isinstance(graded, OpenAIGrader) and not graded.relative and graded.judges == ()


def test_functions_are_named_by_module(grading: Path) -> None:
    plain = make_grader("my_grading:plain", grading)
    assert isinstance(plain, GroupFunction) and plain.relative and plain.name == "plain"
    marked = make_grader("my_grading:marked", grading)
    assert not marked.relative and marked.judges == ("j",)
    made = make_grader({"my_grading:make": {"scale": 2.0}}, grading)
    assert isinstance(made, GroupFunction)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("ranks", "did you mean 'rank'|is no module:function"),
        ("my_grading:absent", "has no 'absent'"),
        ("no_such_module:x", "cannot import"),
        ("rank", "rank: the option 'judge' is missing; it has judge, about, values"),
        ({"rank": {"judge": "j", "best": 1}}, r"rank: there is no option 'best'\. Known here: judge, about"),
        ({"rank": {"jugde": "j"}}, r"rank: there is no option 'jugde'\. Did you mean 'judge'"),
        ({"agree": {"value": "share"}}, r"agree: there is no option 'value'\. Did you mean 'values'"),
        (
            {"rubric": {"judge": "j"}},
            "rubric: the option 'criteria' is missing; it has criteria, judge",
        ),
        (
            {"rubric": {"jugde": "j", "criteria": {"x": "y"}}},
            r"no option 'jugde'\. Did you mean 'judge'",
        ),
        ({"rubric": {"judge": "j", "criteria": ["x"]}}, r"rubric: criteria is \['x'\]; give each a name"),
        (
            {"rubric": {"judge": "j", "criteria": {"x": {"ask": "y", "wieght": 2}}}},
            r"rubric: criteria\.x: there is no option 'wieght'\. Did you mean 'weight'",
        ),
        (
            {"rubric": {"judge": "j", "criteria": {"x": {"ask": "y", "weight": "2"}}}},
            r"rubric: criteria\.x: weight is '2'; give a number above 0",
        ),
        ({"rank": {"judge": "j", "values": "best"}}, "values is"),
        ({"rubric": {"criteria": {"x": {"ask": "y"}}}}, "need a judge"),
        ({"grader": {"file": "absent.json"}}, "cannot be read"),
        (5, "is no function of a group"),
    ],
)
def test_what_names_nothing_is_refused(grading: Path, given: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        make_grader(given, grading)
    assert str(refused.value).startswith("group_reward")


@pytest.mark.slow
def test_the_field_of_a_file_is_a_name_or_one_with_options() -> None:
    given = {"group_reward": {"rank": {"judge": "j"}}}
    config: Any = build_config(given, "run.yaml", context=FILE, plugins=plugins())
    assert config.group_reward == {"rank": {"judge": "j"}}
    for bad in ({"rank": {}, "agree": {}}, {"rank": 5}, 7, [1]):
        with pytest.raises(ConfigError, match="group_reward"):
            build_config({"group_reward": bad}, "run.yaml", context=FILE, plugins=plugins())


def test_a_digest_tells_a_changed_grader_from_the_same() -> None:
    assert digest_of(Rank("j")) == digest_of(Rank("j")) != digest_of(Rank("j", values="ranks"))
    one = GroupFunction(lambda group: [1.0])
    other = GroupFunction(lambda group: [2.0, 0.0])
    assert digest_of(one) == digest_of(one) != digest_of(other)
    assert digest_of(OpenAIGrader(GRADER)) != digest_of(OpenAIGrader({**GRADER, "operation": "ne"}))


# --------------------------------------------------------------------------------------------- the command
def run(*words: str) -> Any:
    app = Typer()
    app.callback()(lambda: None)
    register(app)
    return CliRunner().invoke(app, ["judge", *words])


def test_check_measures_a_judge_at_an_address(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"prompt": "2 + 3?", "a": "5", "b": "6", "better": "a"}))

    def right(body: dict[str, Any]) -> str:
        return json.dumps({"better": 1 if "5" in candidates(body)[0] else 2})

    with ScriptedModelServer(right, model="m", ids="never") as server:
        done = run("check", str(file), "--judge", f"m@{server.url}", "--repeats", "1")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["agreement"] == 1.0 and found["calls"] == 2
    absent = run("check", str(file), "--judge", "m@http://127.0.0.1:9/v1", "--key-env", "NO_SUCH_KEY")
    assert isinstance(absent.exception, agl.UsageError) and "NO_SUCH_KEY is not set" in str(absent.exception)


def test_grade_grades_one_text(grading: Path) -> None:
    words = ("grade", str(grading / "grader.json"), "--item", '{"a": "x"}')
    assert json.loads(run(*words, "--sample", "x").stdout) == {"score": 1.0}
    assert json.loads(run(*words, "--sample", "y").stdout) == {"score": 0.0}
    bad = run("grade", str(grading / "grader.json"), "--item", "{")
    assert isinstance(bad.exception, agl.UsageError)
