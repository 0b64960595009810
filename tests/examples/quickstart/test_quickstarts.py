"""The quickstarts: short, three lines of ours, one wording for every framework, and they train."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from marks import sampled

import agentlightning as agl
from agl_local.policy.folder import Policy, load_policy
from calc_x.evaluate import evaluate
from calc_x.problems import generate
from calc_x.teacher import traces
from calc_x.tokenizer import build_tokenizer
from quickstart.policy import HERE, LINES, WORDINGS, scaffold

EXAMPLES = HERE.parent
SCRIPTS = sorted(EXAMPLES.glob("quickstart_*.py"))
FRAMEWORKS = [
    "agent_framework",
    "agentscope",
    "autogen",
    "crewai",
    "dspy",
    "google_adk",
    "langchain",
    "langgraph",
    "llama_index",
    "openai",
    "openai_agents",
    "pydantic_ai",
    "smolagents",
    "strands_agents",
]

MODULES = {
    "google_adk": "google.adk",
    "langchain": "langchain_openai",
    "llama_index": "llama_index.llms.openai_like",
    "openai_agents": "agents",
    "strands_agents": "strands",
}
"""What a quickstart needs, where that is not its name."""


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(HERE / "policy")


def test_there_is_one_of_each_framework() -> None:
    assert [script.stem.removeprefix("quickstart_") for script in SCRIPTS] == FRAMEWORKS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_sixty_lines_three_of_them_ours(script: Path) -> None:
    lines = script.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 60
    ours = [line for line in lines if "agl" in line]
    assert len(ours) == 3 == len([line for line in lines if "of 3" in line]), ours
    ast.parse(script.read_text(encoding="utf-8"))


@pytest.mark.parametrize("wording", WORDINGS, ids=["plain", "crew"])
def test_the_policy_knows_both_wordings_and_errs_as_its_teacher(policy: Policy, wording: object) -> None:
    greedy = evaluate(policy, generate("heldout", 128), wording=wording)
    assert greedy.called > 0.98
    assert 0.26 <= greedy.reward <= 0.45


def test_fixed_lines_are_one_token_each_and_prompts_short(policy: Policy) -> None:
    for line in scaffold():
        (token,) = policy.tokenizer.encode(line)
        assert not policy.tokenizer.is_special(token)
    for _, (first, second) in zip(range(50), traces(3, WORDINGS), strict=False):
        for example in (first, second):
            prompt = policy.tokenizer.apply(example.messages, example.tools)
            assert len(prompt) <= 90
            assert policy.tokenizer.decode(prompt) == policy.tokenizer.render(example.messages, example.tools)


def test_the_tokenizer_is_the_one_the_code_builds(policy: Policy) -> None:
    built = build_tokenizer(scaffold(), HERE / "template.jinja")
    assert json.loads(built.backend.to_str()) == json.loads(policy.tokenizer.backend.to_str())
    assert len(LINES) == len(set(LINES))


@pytest.mark.plugins
@pytest.mark.parametrize("name", sampled(FRAMEWORKS, FRAMEWORKS.index("openai")))
def test_a_step_is_trained(name: str, tmp_path: Path) -> None:
    if name not in ("openai", "autogen"):
        pytest.importorskip(MODULES.get(name, name))
    script = imported(EXAMPLES / f"quickstart_{name}.py")
    trainer = agl.Trainer(
        policy=HERE / "policy",
        steps=1,
        batch_size=4,
        output=tmp_path,
        trackers=[],
        options={"threads": 1, "engine": "thread"},
    )
    summary = trainer.fit(
        script.solve, script.load("generated:train", 4), script.load("generated:heldout", 8)
    )
    totals = summary["totals"]
    assert totals["calls"] == totals["calls_exact"] >= 60
    assert totals["rollouts_failed"] == 0
    assert totals["tokens_trained"] > 0
    assert totals["logprob_gap_max"] < 1e-4


def imported(script: Path) -> ModuleType:
    """A script as a module, without running it."""
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.stem] = module
    spec.loader.exec_module(module)
    return module
