"""Statements of pages about defaults, limits and figures, compared with what they are about."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from agentlightning.gateway.pipeline import BODY_LIMIT
from agentlightning.plugins.manager import build
from agentlightning.runner.settings import RunnerSection

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    """A page in one line."""
    return " ".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8").split())


def result(name: str) -> Any:
    kept = json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return kept.get("result", kept)


def test_the_limit_of_an_attempt_is_the_one_that_is_said() -> None:
    seconds = RunnerSection().timeout_seconds
    assert f"ends after `agent.timeout_seconds`: {seconds:g} unless you set it" in page("troubleshooting")
    assert f"has {seconds:g} seconds (`agent.timeout_seconds`)" in page("your-agent")


def test_a_step_of_forty_million_tokens_takes_what_was_measured() -> None:
    largest = result("step")["sizes"][-1]
    behind = largest["seconds"] - largest["seconds_ahead"]
    assert f"a step of {largest['tokens'] / 1e6:.1f} million tokens" in page("deploy")
    assert f"its Python took {largest['seconds']:.1f} s in all, {behind:.1f} of them behind" in page("deploy")


def test_a_call_on_disk_takes_what_was_measured() -> None:
    kilobytes = result("store")["calls_bytes"] / 1e3
    day = kilobytes * 86_400 * 1_000 / 1e6
    assert f"| store file | {kilobytes:.1f} kB a call | {kilobytes:.1f} MB/s, {day:.0f} GB a day" in page(
        "contributing/verl"
    )


def test_nginx_takes_bodies_as_a_gateway_does() -> None:
    assert re.findall(r"client_max_body_size (\w+);", page("deploy")) == [f"{BODY_LIMIT >> 20}m"]


def test_the_page_says_how_to_see_and_replace_the_build_of_torch() -> None:
    text = page("gpu")
    assert "print(torch.version.cuda)" in text and "holds torch for CPUs" not in text
    assert "pip install --force-reinstall -c constraints.txt torch --index-url" in text


def test_the_doctors_example_lists_every_recipe() -> None:
    assert f"recipes: {', '.join(sorted(build(discover=False).recipes))}; stores:" in page("doctor")


def test_the_pictures_time_is_told_apart_from_the_tables() -> None:
    drawn = (ROOT / "docs" / "images" / "demo.svg").read_text(encoding="utf-8")
    (seconds,) = set(re.findall(r"(\d+)\.\d+, \"run_id\"", drawn.replace("&quot;", '"')))
    assert f"a slower run than those of the table: {seconds} s in all" in page("contributing/results")


def test_dpo_is_there_and_verifiers_is_the_version_that_runs() -> None:
    assert "`algorithm: dpo`" in page("coming-from") and "`dpo` is the one here" in page("comparison")
    manifest = (ROOT / "plugins" / "verifiers" / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r"verifiers[^\"]*0\.4", manifest) and "with verifiers 0.4" in page("comparison")
    assert "single-turn text" not in page("comparison")


def test_the_rules_of_thumb_have_the_figures_of_what_they_name() -> None:
    text, recipes = page("words"), result("algorithms")["recipes"]
    cispo, four, one = (f"{recipes[f'calc_x/{name}']['after']:.3f}" for name in ("cispo", "grpo-4", "grpo"))
    assert f"`calc_x`: {cispo} and {four}, where `grpo` with one update a step has {one}" in text
    narrow, wide = (f"{recipes[f'werewolf/{name}']['after']:.3f}" for name in ("gspo", "gspo-wide"))
    assert f"On `werewolf` {narrow} by the paper's range, {wide} by GRPO's" in text
    words = result("svamp_real")
    assert f"{words['base']:.3f} as it was, {words['sft']:.3f} after `agl sft`, {words['sft_rl']:.3f}" in text
    waiting = [one["seconds_per_step"] for one in result("ahead")["means"] if one["wait"] == 1.0]
    assert f"{waiting[0]:.2f} → {waiting[1]:.2f} s a step" in text
