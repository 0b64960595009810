"""The whole driver: it serves, collects through HTTP, updates, publishes, saves, resumes, exports."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import urllib.request
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import torch
from marks import sampled

from agentlightning.types import (
    LLM,
    Batch,
    Evaluation,
    Progress,
    Recipe,
    Row,
    Segment,
    StepReport,
    UsageError,
)
from agentlightning.types.work import PolicyFolder
from agl_local import serving as serving_module
from agl_local.cores import auto_threads
from agl_local.driver import LocalDriver
from agl_local.http.process import EngineProcess
from agl_local.network.lora import LoraError
from agl_local.options import Options, read_options
from agl_local.plugin import agl_drivers
from agl_local.policy.checkpoint import latest, saved_steps
from agl_local.policy.folder import fingerprint, load_policy
from agl_local.serving import LocalServer, Refused
from agl_local.supported_fields import LOSSES, SUPPORTED_FIELDS, refuse
from agl_local.training.loss import SURROGATES
from plugins.local.tests.driver_fixtures import saved_policy, tiny_tokenizer

RECIPE = Recipe(name="test", group_size=16)
PROMPT = tiny_tokenizer().encode("say a or b: ")


def post(llm: LLM, body: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps({"model": llm.model, "return_token_ids": True, "logprobs": 1, **body}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {llm.api_key}"}
    request = urllib.request.Request(f"{llm.endpoint}/completions", data, headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return dict(json.load(answer))


class FakeJob:
    """Samples one prompt 16 times; "a" pays 1. ``guided``: only "a" and "b" may be said."""

    def __init__(
        self, driver: LocalDriver, llm: LLM, folder: Path, steps: int, *, first: int = 0, guided: bool = True
    ) -> None:
        self.driver, self.llm, self.folder, self.steps, self.first_step = driver, llm, folder, steps, first
        self.run_id, self.recipe, self.policy, self.seed, self.guided = "run-1", RECIPE, "tiny", 0, guided
        self.reports: list[StepReport] = []
        self.rewards: list[float] = []
        self.events: list[str] = []
        self.empty: set[int] = set()
        self.progressed: list[Progress] = []
        self.checkpoints: list[tuple[str, int]] = []
        self.alone = True

    def state(self) -> dict[str, Any]:
        return {"rewards": self.rewards}

    async def collect(self, step: int) -> Batch:
        self.events.append(f"collect {step}")
        if step in self.empty:
            return Batch(rows=[], metrics={"reward_count": 0.0})
        guide = {"guided_choice": ["a", "b"]} if self.guided else {}
        body = {"prompt": PROMPT, "n": 16, "max_tokens": 4, "temperature": 1.0, "seed": 100 + step, **guide}
        answer = await asyncio.to_thread(post, self.llm, body)
        assert answer["policy_version"] == self.driver.version
        good = [choice["text"].startswith("a") for choice in answer["choices"]]
        self.rewards.append(sum(good) / 16)
        rows = [self.row(step, i, c, good[i] - self.rewards[-1]) for i, c in enumerate(answer["choices"])]
        return Batch(rows=rows, metrics={"reward_mean": self.rewards[-1]})

    def row(self, step: int, i: int, choice: dict[str, Any], advantage: float) -> Row:
        ids = choice["token_ids"]
        before, count = len(PROMPT), len(ids)
        pad = [0.0] * before
        tokenizer = tiny_tokenizer()
        return Row(
            row_id=f"{step}-{i}",
            rollout_id=f"ro-{step}-{i}",
            policy=self.policy,
            token_ids=[*PROMPT, *ids],
            mask=[0] * before + [1] * count,
            advantages=pad + [advantage] * count,
            logprobs=pad + choice["logprobs"]["token_logprobs"],
            weights=pad + [1 / 16 / count] * count,
            versions=[-1] * before + [self.driver.version] * count,
            segments=[Segment(f"c-{step}-{i}", before, before + count, advantage)],
            allowed={before: [tokenizer.encode("a"), tokenizer.encode("b")]} if self.guided else {},
        )

    def progress(self, progress: Progress) -> None:
        self.progressed.append(progress)

    async def report(self, report: StepReport) -> None:
        self.events.append(f"report {report.step}")
        self.reports.append(report)

    async def saved(self, folder: Path, step: int) -> None:
        assert latest(folder.parent) is not None and folder.is_dir()
        self.checkpoints.append((folder.name, step))

    async def evaluate(self, step: int) -> Evaluation | None:
        self.events.append(f"evaluate {step}")
        return None


async def started(policy: Path, **options: Any) -> tuple[LocalDriver, LLM]:
    values = {"engine": "thread", "threads": 1, "lr": 1e-2, "digest_every": 1, **options}
    driver = LocalDriver(PolicyFolder(policy, options=values, name="tiny"), RECIPE)
    return driver, await driver.start()


async def test_a_half_precision_engine_does_not_round_the_steps_away(tmp_path: Path) -> None:
    """The trainer's weights are float32: a step smaller than a half-precision ulp is still made, and kept."""
    policy = saved_policy(tmp_path / "policy")
    driver, llm = await started(policy, dtype="bfloat16", lr=1e-7)
    try:
        assert driver._loaded().model.dtype == torch.float32
        before = {n: p.detach().clone() for n, p in driver._loaded().model.named_parameters()}
        job = FakeJob(driver, llm, tmp_path, steps=2)
        await driver.run(job)
        changed = [
            (p != before[n]).float().mean().item() for n, p in driver._loaded().model.named_parameters()
        ]
        assert sum(changed) / len(changed) > 0.5
        assert all(r.metrics["logprob_gap_max"] > 0 for r in job.reports)
    finally:
        await driver.close()


@pytest.mark.parametrize("engine", sampled(["thread", "process"], 0))
async def test_learns_and_says_so(tmp_path: Path, engine: str) -> None:
    driver, llm = await started(saved_policy(tmp_path / "policy"), engine=engine)
    try:
        job = FakeJob(driver, llm, tmp_path, steps=12)
        await driver.run(job)
        assert sum(job.rewards[:3]) / 3 < 0.8 and job.rewards[-1] > 0.9
        assert job.events[:6] == [
            "collect 0",
            "report 0",
            "evaluate 0",
            "collect 1",
            "report 1",
            "evaluate 1",
        ]
        assert job.reports[0].policy_version == 1 and driver.version == job.reports[-1].policy_version
        for report in job.reports:
            assert report.metrics["logprob_gap_max"] < 1e-4
            in_rows = report.metrics["tokens_trained"] + report.metrics["tokens_zero_advantage"]
            assert report.metrics["logprob_gap_tokens"] == in_rows > 0
            assert set(report.seconds) == {"rollout", "update", "sync"}
            assert report.rows_digest and report.params_digest and "reward_mean" in report.metrics
        folder = await driver.export(tmp_path / "out")
        assert fingerprint(load_policy(folder).model) == job.reports[-1].params_digest
    finally:
        await driver.close()
        await driver.close()


@pytest.mark.parametrize("engine", sampled(["thread", "process"], 0))
async def test_an_update_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setattr("agl_local.progress.SECONDS", 0.0)
    driver, llm = await started(saved_policy(tmp_path / "policy"), micro_batch_tokens=64, engine=engine)
    try:
        job = FakeJob(driver, llm, tmp_path, steps=1, guided=False)
        await driver.run(job)
    finally:
        await driver.close()
    assert {(one.what, one.unit, one.step, one.total) for one in job.progressed} == {
        ("update", "rows", 0, 16)
    }
    assert [one.done for one in job.progressed] == sorted({one.done for one in job.progressed})
    last = job.progressed[-1]
    assert last.done == 16 and last.tokens > 16 * len(PROMPT)
    if Path("/proc/self/statm").exists():
        processes = {"trainer", "engine"} if engine == "process" else {"trainer"}
        assert set(last.memory) == processes and min(last.memory.values()) > 10**7


async def test_free_samples_of_the_engine_have_no_gap(tmp_path: Path) -> None:
    driver, llm = await started(saved_policy(tmp_path / "policy"))
    try:
        job = FakeJob(driver, llm, tmp_path, steps=3, guided=False)
        await driver.run(job)
        assert max(report.metrics["logprob_gap_max"] for report in job.reports) < 1e-4
    finally:
        await driver.close()


async def test_an_empty_batch_is_counted_and_changes_nothing(tmp_path: Path) -> None:
    driver, llm = await started(saved_policy(tmp_path / "policy"))
    try:
        job = FakeJob(driver, llm, tmp_path, steps=2)
        job.empty = {0, 1}
        await driver.run(job)
        assert [r.metrics["skipped"] for r in job.reports] == [1.0, 1.0] and driver.version == 0
        assert job.reports[0].params_digest == job.reports[1].params_digest
    finally:
        await driver.close()


async def test_resumes_from_a_checkpoint_as_if_nothing_had_happened(tmp_path: Path) -> None:
    policy = saved_policy(tmp_path / "policy")
    options = {"save_every": 2, "deterministic": False}
    driver, llm = await started(policy, **options)
    straight = FakeJob(driver, llm, tmp_path / "a", steps=4)
    await driver.run(straight)
    await driver.close()

    driver, llm = await started(policy, **options)
    await driver.run(FakeJob(driver, llm, tmp_path / "b", steps=2))
    await driver.close()
    found = latest(tmp_path / "b" / "checkpoints")
    assert found is not None and found.step == 2
    driver, llm = await started(policy, **options)
    try:
        first, state = await driver.resume(tmp_path / "b")
        assert first == 2 and state == {"rewards": straight.rewards[:2]} and driver.version == 2
        rest = FakeJob(driver, llm, tmp_path / "b", steps=4, first=first)
        await driver.run(rest)
        assert rest.rewards == straight.rewards[2:]
        assert [r.params_digest for r in rest.reports] == [r.params_digest for r in straight.reports[2:]]
        assert [r.rows_digest for r in rest.reports] == [r.rows_digest for r in straight.reports[2:]]
        assert [r.policy_version for r in rest.reports] == [r.policy_version for r in straight.reports[2:]]
    finally:
        await driver.close()


async def test_deterministic_mode_gives_the_same_digests_twice(tmp_path: Path) -> None:
    policy = saved_policy(tmp_path / "policy")
    seen = []
    for folder in ("a", "b"):
        driver, llm = await started(policy, deterministic=True, digest_every=0)
        try:
            job = FakeJob(driver, llm, tmp_path / folder, steps=3)
            await driver.run(job)
        finally:
            await driver.close()
        seen.append([(r.rows_digest, r.params_digest) for r in job.reports])
    assert seen[0] == seen[1] and all(params for _, params in seen[0])
    assert not torch.are_deterministic_algorithms_enabled()


async def test_resume_without_a_checkpoint_is_a_beginning_and_of_another_recipe_refused(
    tmp_path: Path,
) -> None:
    policy = saved_policy(tmp_path / "policy")
    driver, llm = await started(policy, save_every=1)
    try:
        assert await driver.resume(tmp_path) == (0, {})
        await driver.run(FakeJob(driver, llm, tmp_path, steps=1))
        driver.recipe = Recipe(name="other")
        with pytest.raises(UsageError, match="another recipe"):
            await driver.resume(tmp_path)
        driver.recipe = RECIPE
        (tmp_path / "checkpoints" / "step-000001" / "trainer.pt").write_bytes(b"half a file")
        with pytest.raises(UsageError, match=r"damaged: the content of trainer\.pt"):
            await driver.resume(tmp_path)
    finally:
        await driver.close()


async def test_deterministic_mode_goes_on_only_where_it_began(tmp_path: Path) -> None:
    policy = saved_policy(tmp_path / "policy")
    driver, llm = await started(policy, deterministic=True, save_every=1)
    await driver.run(FakeJob(driver, llm, tmp_path, steps=1))
    await driver.close()
    driver, _ = await started(policy, deterministic=True, save_every=1, threads=2)
    try:
        with pytest.raises(UsageError, match=r"threads was 1 and is 2: .* other last bits"):
            await driver.resume(tmp_path)
    finally:
        await driver.close()


async def test_a_checkpoint_without_the_optimizer_is_said_or_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = saved_policy(tmp_path / "policy")
    driver, llm = await started(policy, save_optimizer=False, save_every=1)
    await driver.run(FakeJob(driver, llm, tmp_path, steps=1))
    await driver.close()
    driver, llm = await started(policy, save_every=1)
    try:
        assert (await driver.resume(tmp_path))[0] == 1
        assert [r.getMessage() for r in caplog.records if "begin anew after step 1" in r.getMessage()]
        await driver.run(FakeJob(driver, llm, tmp_path, steps=2, first=1))
    finally:
        await driver.close()


async def test_deterministic_mode_goes_on_only_with_the_moments(tmp_path: Path) -> None:
    policy = saved_policy(tmp_path / "policy")
    with pytest.raises(UsageError, match="deterministic needs save_optimizer"):
        LocalDriver(
            PolicyFolder(policy, options={"deterministic": True, "save_optimizer": False}, name="tiny"),
            RECIPE,
        )
    driver, llm = await started(policy, save_optimizer=False, save_every=1)
    await driver.run(FakeJob(driver, llm, tmp_path, steps=1))
    await driver.close()
    driver, llm = await started(policy, deterministic=True)
    try:
        with pytest.raises(UsageError, match="saved without the optimizer"):
            await driver.resume(tmp_path)
    finally:
        await driver.close()


async def test_rows_of_another_policy_are_refused(tmp_path: Path) -> None:
    driver, llm = await started(saved_policy(tmp_path / "policy"))
    try:
        job = FakeJob(driver, llm, tmp_path, steps=1)
        job.policy = "stranger"
        with pytest.raises(ValueError, match=r"rows of \['stranger'"):
            await driver.run(job)
    finally:
        await driver.close()


async def test_a_policy_that_is_not_there_is_named_and_close_still_works(tmp_path: Path) -> None:
    driver = LocalDriver(PolicyFolder(tmp_path / "nowhere", name="tiny"), RECIPE)
    with pytest.raises(FileNotFoundError, match="nowhere: there is no such folder") as caught:
        await driver.start()
    assert isinstance(caught.value, UsageError)
    await driver.close()


async def test_a_name_of_the_hub_says_how_to_download_it() -> None:
    for serve in (
        LocalDriver(PolicyFolder("Qwen/Qwen2.5-0.5B-Instruct", name="tiny"), RECIPE),
        LocalServer(PolicyFolder("Qwen/Q-1", name="t")),
    ):
        with pytest.raises(UsageError, match=r"give hub:Qwen/Q\S+,") as caught:
            await serve.start()
        assert "there is no such folder" in str(caught.value)
        await serve.close()


async def test_a_policy_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    folder = saved_policy(tmp_path / "policy")
    settings = folder / "tokenizer_config.json"
    kept = json.loads(settings.read_text())
    assert kept.pop("chat_template")
    settings.write_text(json.dumps(kept))
    for serve in (
        LocalDriver(PolicyFolder(folder, name="tiny"), RECIPE),
        LocalServer(PolicyFolder(folder, name="tiny")),
    ):
        with pytest.raises(UsageError, match=r"has no chat template.*chat_template\.jinja"):
            await serve.start()
        await serve.close()


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda p: (p / "config.json").unlink(), r"config\.json: a model folder needs this file"),
        (lambda p: (p / "config.json").write_text("{"), r"config\.json: not valid JSON"),
        (lambda p: (p / "config.json").write_text("{}"), "model_type"),
        (lambda p: (p / "tokenizer.json").unlink(), r"tokenizer\.json: a model folder needs this file"),
        (lambda p: (p / "tokenizer.json").write_text("{}"), r"tokenizer\.json: not a tokenizer"),
        (lambda p: (p / "model.safetensors").unlink(), "no such weights file"),
        (lambda p: (p / "model.safetensors").write_bytes(b"12345678"), "not safetensors"),
    ],
)
async def test_a_policy_folder_that_cannot_be_used_is_said_as_a_mistake_to_mend(
    tmp_path: Path, spoil: Any, match: str
) -> None:
    policy = saved_policy(tmp_path / "policy")
    spoil(policy)
    driver = LocalDriver(PolicyFolder(policy, options={"threads": 1}, name="tiny"), RECIPE)
    try:
        with pytest.raises(UsageError, match=match) as caught:
            await driver.start()
        assert str(policy) in str(caught.value)
    finally:
        await driver.close()


async def test_a_start_cancelled_while_the_policy_loads_starts_no_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading, go_on = threading.Event(), threading.Event()
    processes: list[object] = []
    real = serving_module.load_policy

    def slow(*args: Any, **kwargs: Any) -> Any:
        loading.set()
        go_on.wait(300)
        return real(*args, **kwargs)

    monkeypatch.setattr(serving_module, "load_policy", slow)
    monkeypatch.setattr(EngineProcess, "start", lambda self: processes.append(self))
    driver = LocalDriver(
        PolicyFolder(saved_policy(tmp_path / "policy"), options={"threads": 1}, name="tiny"), RECIPE
    )
    start = asyncio.create_task(driver.start())
    assert await asyncio.to_thread(loading.wait, 300)
    start.cancel()
    await asyncio.wait([start])
    close = asyncio.create_task(driver.close())
    while not driver._closed:
        await asyncio.sleep(0)
    go_on.set()
    await close
    assert start.cancelled() and not processes
    await driver.close()


@pytest.mark.slow
async def test_a_start_cancelled_while_the_engine_starts_leaves_no_process(
    tmp_path: Path, greeted: Queue[Any]
) -> None:
    driver = LocalDriver(
        PolicyFolder(saved_policy(tmp_path / "policy"), options={"threads": 1}, name="tiny"), RECIPE
    )
    start = asyncio.create_task(driver.start())
    process = await asyncio.to_thread(greeted.get, timeout=300)
    start.cancel()
    await asyncio.wait([start])
    await driver.close()
    assert process.poll() is not None and greeted.empty()


async def test_a_driver_that_is_closed_does_not_start(tmp_path: Path) -> None:
    driver = LocalDriver(PolicyFolder(tmp_path, name="tiny"), RECIPE)
    await driver.close()
    with pytest.raises(RuntimeError):
        await driver.start()


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"critic": True}, "value head.*the driver verl"),
        ({"loss": "magic"}, "'magic' is not one of"),
        ({"top_p": 0.9}, "truncated distribution"),
        ({"top_k": 40}, "truncated distribution"),
        ({"loss": "reinforce", "clip_high": 0.3}, "clip_high would be ignored"),
    ],
)
def test_what_would_be_ignored_is_refused(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        refuse(Recipe(name="r", **fields))
    refuse(Recipe(name="r"))
    with pytest.raises(UsageError, match=match):
        LocalDriver(PolicyFolder("policy", name="tiny"), Recipe(name="r", **fields))


def test_honours_names_real_fields_and_losses_that_exist() -> None:
    assert set(Recipe.__struct_fields__) >= SUPPORTED_FIELDS
    assert not SUPPORTED_FIELDS & {"critic", "lam", "top_p", "top_k"}
    assert set(SURROGATES) == LOSSES


@pytest.mark.parametrize(
    ("given", "update", "serving"),
    [
        ({}, 6, 6),
        ({"engines": 2}, 6, 3),
        ({"engines": 9}, 6, 1),
        ({"threads": 4}, 4, 4),
        ({"threads": "auto", "engine_threads": 5}, 6, 5),
        ({"deterministic": True}, 6, 1),
    ],
)
def test_threads(given: dict[str, Any], update: int, serving: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agl_local.options.auto_threads", lambda: 6)
    options = read_options(given)
    assert (options.update_threads, options.serving_threads) == (update, serving)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no affinity of processes")
def test_auto_threads_are_the_cores_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    for cores, threads in ((1, 1), (3, 3), (64, 8)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert auto_threads() == threads


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"learning_rat": 1}, "no option 'learning_rat'"),
        ({"thread": 1}, "Did you mean 'threads'"),
        ({"lr": "fast"}, r"\$\.lr"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"engine_threads": 0}, "engine_threads must be at least 1"),
        ({"threads": "all"}, r"\$\.threads"),
        ({"save_every": -1}, "save_every must not be negative"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be positive"),
        ({"dtype": "int8"}, "dtype 'int8'"),
        ({"dtype": "bfloat16", "deterministic": True}, "deterministic needs"),
        ({"micro_batch_tokens": "auto"}, "no automatic choice: give a number, or leave it out for 4096"),
        ({"engine": "cloud"}, "engine"),
    ],
)
def test_options_are_checked(given: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match) as caught:
        read_options(given)
    assert isinstance(caught.value, UsageError)
    assert read_options(None) == Options()


@pytest.mark.parametrize("device", ["cpu", "auto"])
async def test_moments_are_not_offloaded_from_a_cpu(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agl_local.driver.pick_device", lambda name: "cpu")
    with pytest.raises(Refused, match=f"own memory; device: {device} is the CPU here: leave it out"):
        await started(saved_policy(tmp_path), device=device, offload_optimizer=True)


async def test_max_len_above_the_positions_of_the_policy_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Policies of a run may share the option: it is no mistake."""
    driver, _ = await started(saved_policy(tmp_path), max_len=257)
    await driver.close()
    said = [line for line in caplog.messages if "positions" in line]
    assert said == [
        "policy 'tiny' has 256 positions, so prompt and answer have at most these tokens; max_len is 257"
    ]


@pytest.mark.parametrize("rank", [16, 17, 33])
async def test_a_rank_above_the_sides_of_the_matrices(
    rank: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys have 16 rows, the largest matrices 32."""
    starting = started(saved_policy(tmp_path), lora={"rank": rank})
    if rank > 32:
        with pytest.raises(LoraError, match=r"rank 33 is above .* of every matrix \(at most 32"):
            await starting
        return
    driver, _ = await starting
    await driver.close()
    warned = "rank 17 is above the shorter side of a matrix (16, of model.layers" in caplog.text
    assert warned == (rank > 16)


def test_the_plugin_registers_without_loading_torch() -> None:
    import subprocess
    import sys

    code = "import sys, agl_local.plugin as p; p.agl_drivers(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    (spec,) = agl_drivers()
    assert spec.name == "local" and spec.supported_fields == SUPPORTED_FIELDS


@pytest.mark.parametrize("during", ["collect", "evaluate"])
async def test_who_is_cancelled_between_updates_saves_the_finished_steps(tmp_path: Path, during: str) -> None:
    """As by Ctrl-C. The state is that of the finished steps, whatever the unfinished one did to it."""
    policy = saved_policy(tmp_path / "policy")
    driver, llm = await started(policy, save_every=10)
    waiting = asyncio.Event()

    class Job(FakeJob):
        async def collect(self, step: int) -> Batch:
            if (during, step) == ("collect", 2):
                await self.hang()
            return await super().collect(step)

        async def evaluate(self, step: int) -> Evaluation | None:
            if (during, step) == ("evaluate", 1):
                await self.hang()
            return None

        async def hang(self) -> None:
            self.rewards.append(99.0)
            waiting.set()
            await asyncio.Event().wait()

    job = Job(driver, llm, tmp_path, steps=4)
    running = asyncio.create_task(driver.run(job))
    await waiting.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    digest = fingerprint(driver._loaded().model)
    await driver.close()
    assert job.checkpoints == [("step-000002", 2)]
    again, _ = await started(policy)
    try:
        assert await again.resume(tmp_path) == (2, {"rewards": job.rewards[:2]})
        assert fingerprint(again._loaded().model) == digest
    finally:
        await again.close()


@pytest.mark.parametrize(("alone", "every"), [(False, 10), (True, 0)])
async def test_of_several_policies_and_without_checkpoints_none_is_saved_early(
    tmp_path: Path, alone: bool, every: int
) -> None:
    driver, llm = await started(saved_policy(tmp_path / "policy"), save_every=every)
    waiting = asyncio.Event()

    class Job(FakeJob):
        async def collect(self, step: int) -> Batch:
            if step:
                waiting.set()
                await asyncio.Event().wait()
            return await super().collect(step)

    job = Job(driver, llm, tmp_path, steps=4)
    job.alone = alone
    running = asyncio.create_task(driver.run(job))
    await waiting.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await driver.close()
    assert not job.checkpoints and not saved_steps(tmp_path / "checkpoints")
