"""Two agents with adapters of their own over one base: the run is that of two copies, to the bit."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from e2e.test_deterministic import Crash, breaking
from e2e.test_line import Watch
from e2e.two_policies import OPTIONS, digests, game, judge, trainer

from agentlightning import LLM, PolicyFolder
from agentlightning.algorithms.journal import policy_home
from agl_local.bases import Member, SharedBase
from agl_local.driver import LocalDriver
from agl_local.policy.checkpoint import latest
from agl_local.policy.folder import fingerprint, load_policy
from plugins.local.tests.driver_fixtures import saved_policy

TASKS, NAMES = [3, 5, 8], ("wolves", "town")


def parameters(folder: Path, **options: Any) -> str:
    return fingerprint(load_policy(folder, **options).model)


async def life(folder: Path, referee: LLM, **options: Any) -> tuple[Watch, dict[str, Any]]:
    """A run in which both policies have LoRA over int8, the second with settings of its own."""
    base, watch = saved_policy(folder / "base", 1), Watch()
    own = {"lr": 2e-3, "lora": {"rank": 2, "targets": "all-linear"}}
    policy = {"wolves": base, "town": PolicyFolder(base, options=own), "judge": referee}
    shared = {**OPTIONS, "save_every": 2, "lora": {"rank": 4, "alpha": 16}, "quantize": "int8"}
    made = trainer(folder / "runs", watch, referee, policy=policy, **{"options": shared, **options})
    return watch, await made.afit(game, TASKS)


@pytest.mark.slow
async def test_two_agents_over_one_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, share, shared = {}, LocalDriver.share, []

    def noted(driver: LocalDriver, base: SharedBase) -> None:
        shared.append(driver.name)
        share(driver, base)

    monkeypatch.setattr(LocalDriver, "share", noted)
    async with judge() as referee:
        for how in ("shared", "copies", "broken off"):
            with monkeypatch.context() as patch:
                if how == "copies":
                    patch.setattr(Member, "shares", lambda *_: False)
                crashes = how == "broken off"
                if crashes:  # between the checkpoints of the two
                    breaking(LocalDriver, "_save", "after", 1, patch)
                with pytest.raises(Crash) if crashes else nullcontext():
                    watch, summary = await life(tmp_path / how, referee)
            if crashes:
                watch, summary = await life(tmp_path / how, referee, resume=True)
            found[how] = digests(watch)
            assert summary["totals"]["logprob_gap_max"] <= 1e-4
    assert shared == [*NAMES] * 3, "not where there are copies"
    assert found["shared"] == found["copies"] and len(found["shared"]) == 6
    assert found["broken off"].items() <= found["shared"].items()
    base = parameters(tmp_path / "shared" / "base")
    assert base == parameters(tmp_path / "copies" / "base") == parameters(saved_policy(tmp_path / "new", 1))
    last = {}
    for how in found:
        run = tmp_path / how / "runs" / "r"
        last[how] = {name: parameters(run / "policy" / name) for name in NAMES}
        for name in NAMES:
            kept = latest(policy_home(run, name) / "checkpoints")
            assert kept is not None and kept.step == 3
            assert parameters(kept.folder / "policy") == last[how][name]
            assert (kept.folder / "adapter" / "adapter_config.json").is_file()
    assert last["shared"] == last["copies"] == last["broken off"]
    assert len({*last["shared"].values(), parameters(tmp_path / "new", quantize="int8")}) == 3
