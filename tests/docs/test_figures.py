"""The figures of README and of the page of results are those that the committed results hold."""

from __future__ import annotations

import importlib
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SHOWN = README + (ROOT / "docs" / "contributing" / "results.md").read_text()


def result(name: str) -> Any:
    kept = json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())
    return kept.get("result", kept)


def stands(*texts: str) -> None:
    for text in texts:
        assert text in SHOWN, (
            f"neither README.md nor docs/contributing/results.md says {text!r}, which bench/results does"
        )


def test_seeds() -> None:
    runs = result("calc_x_seeds")["runs"]
    assert [r["seed"] for r in runs] == [1, 2, 3]
    for r in runs:
        assert r["reward_after"] >= 2 * r["reward_before"] and r["ci_before"][1] < r["ci_after"][0]
        stands(f"| {r['seed']} | {r['reward_before']:.3f} ", f"**{r['reward_after']:.3f}**")
        stands(f"{r['sampled_before']:.3f} → {r['sampled_after']:.3f} | {r['train_seconds']:.0f} s")


def test_the_example_shows_the_same_table() -> None:
    example = (ROOT / "examples" / "calc_x" / "README.md").read_text()
    rows = [line for line in SHOWN.splitlines() if line.startswith(("| 1 | ", "| 2 | ", "| 3 | "))]
    assert len(rows) == 3 and all(row in example for row in rows)


def test_calls_of_the_seeds() -> None:
    runs = result("calc_x_seeds")["runs"]
    calls, exact = sum(r["calls"] for r in runs), sum(r["calls_exact"] for r in runs)
    gap = max(r["logprob_gap_max"] for r in runs)
    refused = sum(r["calls_no_ids"] for r in runs)
    assert calls == exact + refused and refused < calls / 1000 and gap <= 1e-4
    stands(f"{exact:,.0f} of {calls - refused:,.0f} answered", f"{refused:,.0f} refused", f"{gap:.1e}")


def test_drills() -> None:
    r = result("drills_core")
    assert r["kills"] >= 50 and not (r["lost"] or r["doubled"] or r["hash_mismatches"] or r["worthless"])
    stands(f"{r['kills']} kills -9", f"{r['steps_compared']} step hashes compared, 0 different")
    stands(f"{r['acknowledged']:,} acknowledged writes")


def test_failing_agent() -> None:
    r = result("failing_agent")
    assert r["ledger_sums"] and r["calls_made"] == r["calls_ledgered"] and r["difference_points"] <= 5
    stands(f"{r['healthy']:.3f} and {r['failing']:.3f}", f"{r['calls_ledgered']:,} of {r['calls_made']:,}")


def test_real_data() -> None:
    r = result("real_data")
    assert r["calls_made"] == r["calls_exact"] and r["oracle_reward"] >= 0.98
    stands(f"{r['calls_exact']} of {r['calls_made']} calls exact")
    stands(f"rewards {r['oracle_reward']:.2f} and {r['tiny_reward']:.2f}")


def test_core() -> None:
    r = result("import")
    stands(f"{r['import_seconds']:.3f} s beyond", f"{r['packages']} packages, {r['installed_mb']} MB")
    stands(f"{r['with_bytecode_mb']} MB with the bytecode")


def test_gateway() -> None:
    r = result("gateway")
    stands(" / ".join(f"{r[c]['cpu_ms']:.2f}" for c in ("c1", "c16", "c64")) + " ms at 1 / 16 / 64")
    stands(" / ".join(f"{r[c]['rps']:,}" for c in ("c1", "c16", "c64")))
    stands(f"{r['sse_200_chunks_c32']['cpu_ms']:.1f} ms CPU")


def test_store() -> None:
    r = result("store")
    stands(f"{r['calls_bytes']:,}", f"{r['spans_per_s']:,} / {r['leases_per_s']:,}")
    stands(f"{r['cycles_per_s_http_4req']:,} / {r['cycles_per_s_http_batch']:,}")


def test_local() -> None:
    engine, update = result("local_engine"), result("local_update")
    stands(f"{engine['turns_per_second']:,.0f}")
    stands(f"{update['seconds']:.2f} s, {update['times_faster']:.2f} × faster")


def test_werewolf() -> None:
    wolves = result("werewolf")["sides"]["wolves"]
    assert wolves["ci_before"][1] < wolves["ci_after"][0]
    stands(f"{wolves['win_before']:.3f} (", f"**{wolves['win_after']:.3f}**")


def test_spider_ablation() -> None:
    runs = json.loads((ROOT / "bench" / "results" / "spider_ablation.json").read_text())["runs"]
    page = (ROOT / "examples" / "spider" / "README.md").read_text()
    for arm in {run["arm"] for run in runs}:
        mine = [run for run in runs if run["arm"] == arm]
        shown = []
        for key in ("reward_after", "sampled_after"):
            values = [run[key] for run in mine]
            shown.append(f"{statistics.fmean(values):.3f} ({min(values):.3f}–{max(values):.3f})")
        counts = [
            f"{statistics.fmean(run[key] for run in mine):,.0f}"
            for key in ("calls_trained", "tokens_trained")
        ]
        assert f"| {' | '.join([arm, *shown, *counts])} |" in page


def test_rows() -> None:
    r = result("rows")
    stands(*(f"{r[what]['forest']['tokens_fewer']:.2f} ×" for what in ("zh12", "tool_agent")))


def test_verl() -> None:
    run = result("verl_calc_x")
    assert run["calls"] == run["calls_exact"] and run["steps"] >= 15
    stands(f"held-out {run['before']:.3f} → {run['after']:.3f}; gradients")
    kept = json.loads((ROOT / "bench" / "results" / "verl_parity.json").read_text())
    results = {name: one["result"] for name, one in kept.items() if name != "curves"}
    errors = {name: one["gradient_relative_error"] for name, one in results.items()}
    critic = max(error for name, error in errors.items() if name.startswith("ppo"))
    many = {name for name in errors if name.startswith("minibatches")}
    others = errors.keys() - many - {name for name in errors if name.startswith("ppo")}
    worst = max(errors[name] for name in others)
    assert worst < 1e-3 and critic < 1e-3
    stands(f"{worst:.1e} for eighteen recipes", f"{critic:.1e} of")
    assert len({name.partition(",")[0] for name in others}) == 18
    after = max(results[name]["weights"]["relative_error"] for name in many)
    assert any(results[name]["steps_empty"] for name in many) and after < 1e-2
    stands(f"moved the weights alike to {after:.1e}")


def test_judge() -> None:
    """The table of a judge in place of the reward, and what a real judge was worth."""
    named = {"reward": "the rule", "agree": "agreement of the answers, no judge", "ranks, noise 0": "ranks"}
    rows: dict[str, list[str]] = {}
    for task in result("judge")["tasks"].values():
        for arm in task["arms"]:
            name = arm["arm"].replace("noise 0.1", "10 % wrong").replace("noise 0.3", "30 % wrong")
            low, high = arm["ci_after"]
            asked = f"{arm['judge_calls']}, {arm['judge_tokens']:,}" if arm["judge_calls"] else "none"
            cells = [f"{arm['before']:.3f} → {arm['after']:.3f} ({low:.2f}–{high:.2f})", asked]
            rows.setdefault(named.get(name, name), []).extend(cells)
            assert not arm["judge_calls"] or arm["rescored"]["judge_calls"] == 0
    for name, cells in rows.items():
        stands(f"| {' | '.join([name, *cells, *[''] * (4 - len(cells))])} |".replace("|  |  |", "| | |"))
    real = [one for task in result("judge")["tasks"].values() for one in task["real"]]
    free, forced = ([one for one in real if one["forced"] is how] for how in (False, True))
    assert not any(one["answers"] for one in free)
    stands("(" + " and ".join(f"{one['tokens']:,}" for one in free) + " tokens)")
    stands(" and ".join(f"{100 * one['contradicted']:.0f}" for one in forced) + " % of")


def test_tinker() -> None:
    page = (ROOT / "docs" / "tinker.md").read_text()

    def says(text: str) -> None:
        assert text in page, f"docs/tinker.md does not say {text!r}, which bench/results does"

    for one in result("tinker")["servers"].values():
        assert one["calls"] == one["calls_exact"] and not one["steps_lost"] and one["gap"] < 1e-3
        says(f"{one['before']:.3f} → {one['after']:.3f} in {one['steps']} steps")
        says(f"{one['calls_exact']:,} of {one['calls']:,} calls exact, logprobs apart by {one['gap']:.1e}")
    parity = result("tinker_parity")
    assert parity["largest_relative_error"] <= parity["limit"]
    says(f"within {parity['largest_relative_error']:.1e} of their norm")
    recipes = result("tinker_cookbook")
    assert len(recipes["recipes"]) == recipes["ran"] == recipes["learned"]
    for name in ("nll", "reward"):
        says(" → ".join(f"{number:.3f}" for number in recipes[name]))
    drill = result("drill_tinker")
    assert not drill["steps_twice"] and not drill["steps_lost"]
    says(f"{drill['client_kills']} kills of a run and {drill['server_kills']} of its server")
    stands(f"{drill['client_kills']} kills -9 of a run, {drill['server_kills']} of its server")


def test_vllm() -> None:
    r = result("vllm")
    assert r["calls_made"] == r["calls_exact"]
    stands(f"{r['calls_exact']} of {r['calls_made']} calls exact", f"{r['logprob_gap_max']:.1e} |")


def test_capture_overhead() -> None:
    found = result("capture_overhead")["frameworks"]
    wire = statistics.median(one["wire_us"] for one in found.values())
    adapter = statistics.median(one["adapter_us"] for name, one in found.items() if name != "openai")
    large = statistics.median(one["wire_us_32k"] for one in found.values())
    stands(f"{wire:.0f} µs and {adapter:.0f} µs", f"{large / 1000:.1f} ms ([each framework]")


def shown(scored: dict[str, Any]) -> str:
    low, high = scored["ci"]
    return f"{scored['reward']:.3f} ({low:.2f}–{high:.2f})"


def learned(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Before and after as README's table has them."""
    reward, interval = shown(after).split(" ", 1)
    return f"{shown(before)} → **{reward}** {interval}"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Import a module of ``bench/``, and forget it afterwards."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(ROOT / "bench") in sys.modules[name].__file__:
            del sys.modules[name]


CHINESE = (ROOT / "README.zh.md").read_text()


def test_readme_has_the_figures_that_each_task_of_its_headlines_earned(bench: Callable[[str], Any]) -> None:
    per_task = bench("per_task")
    for name in ("router", "calc_x", "spider", "desk", "text_world", "search"):
        found = per_task.headline(*per_task.HEADLINES[name])
        row = learned(found["before"][0], found["after"][0])
        assert f"| {row} |" in README and f"| {row} |" in CHINESE, f"{name}: {row}"
        if name == "spider":
            assert row in (ROOT / "examples" / "spider" / "README.md").read_text()
        if name == "calc_x":
            rewards = {f"{one['reward']:.3f}" for one in found["after"]}
            assert rewards == {"0.992"} and len(found["after"]) == 3
            stands("calc_x ended at 0.992\nfor all three seeds")
    # Games are independent of each other: their number and the share won are all that an interval needs.
    wolves = result("werewolf")["sides"]["wolves"]
    before, after = (
        per_task.scored([1.0] * round(1000 * share) + [0.0] * round(1000 * (1 - share)), None, None)
        for share in (wolves["win_before"], wolves["win_after"])
    )
    assert f"| {learned(before, after)} |" in README and f"| {learned(before, after)} |" in CHINESE


def test_long_conversations_and_long_games(bench: Callable[[str], Any]) -> None:
    per_task = bench("per_task")
    for name in ("desk", "text_world", "search"):
        found = per_task.headline(*per_task.HEADLINES[name])
        after = ", ".join(f"{one['reward']:.3f}" for one in found["after"])
        baseline = result(f"{name}_seeds")["runs"][0]["baseline"]
        stands(f"| {shown(found['before'][0])} | {after} | {baseline:.3f} |")


def test_the_pretrained_model(bench: Callable[[str], Any]) -> None:
    """What its 70 and its 13 databases say, beside the best script that sees the same text, and its costs."""
    plot = bench("router_plot")
    for name in ("halves", "names"):
        tasks, found = plot.chosen(name)
        (letters,) = found["letters"]
        said = shown(plot.score(letters, tasks))
        assert said in README and said in CHINESE
        stands(plot.difference(plot.ahead(name)[0]))
    (ahead,) = plot.ahead("halves")
    assert plot.difference(ahead) in README and plot.difference(ahead) in CHINESE
    low, _ = ahead["ci"]
    assert low > 0, "README's first row is not clear of a script that sees the same text"
    tasks, found = plot.chosen("names")
    before, after = (plot.score(found[when][0], tasks) for when in ("before", "after"))
    for text in (README, CHINESE):
        assert f"{before['reward']:.3f} → {after['reward']:.3f}" in text
    seeds = [run for run in result("router_seeds")["runs"] if run["row"] == "names"]
    assert [run["seed"] for run in seeds] == [1, 2, 3]
    for run in seeds:
        assert run["calls"] == run["calls_exact"] and run["train_seconds"] <= 240 and run["peak_mb"] <= 5000
    # What each question earned was kept in a run of its own, with the same seed: it is the same to the digit.
    assert seeds[0]["reward_after"] == after["reward"] and seeds[0]["reward_before"] == before["reward"]
    stands(f"{seeds[0]['calls_exact']:,} of {seeds[0]['calls']:,} calls exact")
    page = (ROOT / "docs" / "contributing" / "models.md").read_text()
    trainer, engine = (max(run[f"peak_mb_{part}"] for run in seeds) for part in ("trainer", "engine"))
    assert f"peaks at {trainer / 1000:.1f} GB, and the engine at {engine / 1000:.1f} GB" in page
    stands(f"At most {max(run['peak_mb'] for run in seeds) / 1000:.1f} GB are taken")
    for measure in ("train_seconds", "total_seconds"):
        times = [run[measure] for run in seeds]
        stands(f"{min(times):.0f} to {max(times):.0f} s")


def test_the_page_of_the_router_has_the_tables_of_its_questions(bench: Callable[[str], Any]) -> None:
    page = (ROOT / "examples" / "router" / "README.md").read_text()
    assert bench("router_plot").section(result("router_seeds")["runs"]) in page


def test_beside_other_engines_and_trainers() -> None:
    found = result("real_model")
    rows = {(one["subject"], one["batch"]): one for one in found["generation"]["rows"]}

    def rates(subject: str, batch: int) -> str:
        one = rows[subject, batch]
        return f"{one['prefill_tokens_per_second']:,.0f} / {one['decode_tokens_per_second']:,.0f}"

    for batch, name in ((1, "one"), (8, "8"), (32, "32"), (64, "64")):
        cells = (name, *(rates(subject, batch) for subject in ("agl-local", "transformers", "vllm")))
        stands(f"| {' | '.join(cells)} |")
        for what in ("prefill", "decode"):
            key = f"{what}_tokens_per_second"
            assert rows["agl-local", batch][key] > rows["transformers", batch][key]
    http = (f"{rows['agl-local, HTTP', batch]['decode_tokens_per_second']:.0f}" for batch in (1, 8, 32, 64))
    stands(f"{' / '.join(http)} tokens per second")
    updates = {(one["job"], one["subject"]): one for one in found["updates"] if "job" in one}
    for subject in ("agl-local", "transformers", "trl"):
        plain, header = updates["no header", subject], updates["header of 1000", subject]
        stands(f"{plain['seconds_a_row']:.2f} s", f"{header['seconds_a_row']:.2f} s")
        stands(f"{plain['peak_mb'] / 1000:.1f} GB")
        assert header["grad_norm_first"] == pytest.approx(plain["grad_norm_first"], rel=0.1)
    ours, theirs = (found["engine_peak_mb"][subject] / 1000 for subject in ("agl-local", "vllm"))
    stands(f"{ours:.1f} GB (vLLM {theirs:.1f} GB)")


def test_word_problems() -> None:
    found = result("svamp_real")
    for stage in ("base", "sft", "sft_rl"):
        low, high = found["ci"][stage]
        text = SHOWN.replace("\n", " ")
        assert f"{found[stage]:.3f} ({low:.2f}–{high:.2f})" in text
    stands(f"{found['calls_exact']:,} of {found['calls']:,} calls exact")


def test_what_was_tried_on_word_problems() -> None:
    page = (ROOT / "examples" / "word_problems" / "README.md").read_text()
    base = result("word_problems_answers")
    assert f"{base['expressions']} of the {base['answers']} test answers are an expression" in page
    assert f"{base['right']} of them the right one; {base['right_inside']} hold the right" in page
    assert base["right"] / base["answers"] == pytest.approx(result("svamp_real")["base"])
    for r in result("word_problems_settings")["runs"]:
        low, high = r["ci_gain"]
        cells = (
            f"{r['lr']:g}", f"{r['steps']}", f"{r['group']}", f"{r['temperature']:g}",
            f"{r['groups_with_spread']:.2f}", f"{r['reward_before']:.3f} → {r['reward_after']:.3f}",
            f"{r['gain']:+.3f} ({low:+.2f} to {high:+.2f})",
        )  # fmt: skip
        assert f"| {' | '.join(cells)} |" in page
        assert low <= 0 <= high, "the page says that none differs"


def test_quantised() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text()
    tiny, router = result("quantised_calc_x"), result("quantised_router")
    bases = {
        "float32": "float32",
        "bf16": "float32, with a bfloat16 engine",
        "int8": "`int8`",
        "int4": "`nf4`",
    }
    for kind, base in bases.items():
        learned = (f"{one['before'][kind]:.3f} → {one[kind]:.3f}" for one in (tiny, router))
        gap = max(one["logprob_gap_max"][kind] for one in (tiny, router))
        assert f"| {base} | {' | '.join(learned)} | {gap:.2g} |" in page
    for one in (tiny, router):
        assert all(abs(one[kind] - one["float32"]) < 0.03 for kind in ("bf16", "int8", "int4"))
    calls, exact = (sum(one[name] for one in (tiny, router)) for name in ("calls", "calls_exact"))
    assert f"{exact:,} of {calls:,} calls were exact" in page


def test_policies() -> None:
    """What a checkpoint of the pretrained model takes, and what it does with tools."""
    page = " ".join((ROOT / "docs" / "contributing" / "models.md").read_text().split())
    parts = result("trained_part")
    sizes = [f"{parts[one]['checkpoint_mb']:,}" for one in ("all", "freeze", "lora")]
    assert (
        f"{sizes[0]} MB if all is trained" in page
        and f"{sizes[1]} and {parts['freeze']['next_mb']:,} MB" in page
    )
    assert f"{sizes[2]} and {parts['lora']['next_mb']} MB with LoRA" in page
    peaks = [f"{parts[one]['peak_mb'] / 1000:.1f}" for one in ("all", "freeze", "lora")]
    assert f"{peaks[0]}, {peaks[1]} and {peaks[2]} GB" in page
    for row in result("real_tools")["rows"].values():
        cells = [f"{value:.2f}" for key, value in row.items()]
        assert " | ".join(cells[-2:]) in page


def test_memory_of_an_update() -> None:
    page = (ROOT / "docs" / "contributing" / "models.md").read_text()
    found = result("local_update_smollm2")["tree_training"]
    for kind, name in (("router", "router"), ("few_shot", "behind examples")):
        for mode, checkpointing in (("trie", "no"), ("trie_recomputed", "yes")):
            one = found[kind]
            cells = (
                name, f"{one['tokens_read']:,}", f"{one[f'tokens_computed_{mode}']:,}", checkpointing,
                f"{one[f'peak_mb_{mode}'] / 1000:.1f}", f"{one[f'cpu_seconds_{mode}']:.1f}",
            )  # fmt: skip
            assert f"| {' | '.join(cells)} |" in page


def test_finished_first() -> None:
    found = result("finished_first")
    assert found["reward_kept"] and found["bound_held"]
    page = (ROOT / "docs" / "contributing" / "results.md").read_text()
    for order, one in found["means"].items():
        cells = (
            f"`{order}`", f"{one['seconds_per_step']:.2f}", f"{one['rollout']:.2f}",
            f"{one['staleness_mean']:.2f}", f"{one['started_again']:.0f}",
            f"{one['reward_before']:.3f} → {one['reward_after']:.3f}",
        )  # fmt: skip
        assert f"| {' | '.join(cells)} |" in page
    dataset, finished = (found["means"][order] for order in ("dataset", "finished"))
    stands(f"{dataset['seconds_per_step']:.2f} → {finished['seconds_per_step']:.2f} s a step")
    stands(f"held-out reward {dataset['reward_after']:.3f} and {finished['reward_after']:.3f}")


def test_ahead() -> None:
    means = result("ahead")["means"]
    page = (ROOT / "docs" / "contributing" / "results.md").read_text()
    for one in means:
        staleness = f"{one['staleness_mean']:.2f}" if one["staleness_mean"] else "0"
        reward = f"{one['reward_before']:.3f} → {one['reward_after']:.3f}"
        parts = f"{one['rollout']:.2f}, {one['update']:.2f}"
        cells = [
            f"{one['wait']:g} s",
            f"{one['ahead']}",
            f"{one['seconds_per_step']:.2f}",
            parts,
            staleness,
            reward,
        ]
        assert f"| {' | '.join(cells)} |" in page
    fast, slow = ([one for one in means if one["wait"] == wait] for wait in (0.0, 1.0))
    stands(*(" → ".join(f"{one['seconds_per_step']:.2f}" for one in two) for two in (fast, slow)))


def test_curves() -> None:
    kept = json.loads((ROOT / "bench" / "results" / "verl_parity.json").read_text())["curves"]["result"]
    assert kept["local"] == kept["verl"] and len(kept["local"]) == 3 and kept["steps"] == 20


def test_quickstarts() -> None:
    found = result("quickstarts")["frameworks"].values()
    exact, calls = (sum(one[key] for one in found) for key in ("calls_exact", "calls"))
    refused = sum(one.get("calls_refused", 0) for one in found)
    after = [one["after"] for one in found]
    assert all(one["after"] > one["before"] for one in found) and exact == calls - refused
    stands(f"→ {min(after):.2f}–{max(after):.2f}; {exact:,} of {exact:,} answered, {refused} refused")


def test_hostile() -> None:
    r = result("hostile_agents")
    assert r["run_finished"] and r["ledger_sums"] and r["lost"] == 0 and r["rollouts"] == 300
    stands(f"{r['rollouts']} rollouts of agents that misbehave in {r['ways']} ways")
    stands(f"{r['hostile']:.3f} and {r['healthy']:.3f}; of {r['calls_answered']:,} answered calls 0 lost")
    stands(f"{r['bad_records']} bad records")
