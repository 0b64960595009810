"""A run leaves rollouts in its store; sft, rejection and dpo learn from them in runs of their own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e.test_line import Watch, trainer
from e2e.test_several_engines import TASKS, talk

import agl_audit.plugin
import agl_local.plugin
from agentlightning import GRPO
from agentlightning.plugins.manager import build
from agentlightning.store import SQLiteStore
from agentlightning.types import UsageError
from plugins.local.tests.driver_fixtures import saved_policy

OPTIONS = {"threads": 1, "engine": "thread", "max_num_seqs": 16, "max_len": 256, "lr": 1e-2}


def made(folder: Path, watch: Watch, **given: Any) -> Any:
    given = {"options": OPTIONS, "adapters": [], "policy": folder / "policy", **given}
    plugins = build([agl_local.plugin, agl_audit.plugin, watch], discover=False)
    return trainer(folder / "runs", watch, plugins=plugins, **given)


@pytest.mark.slow
@pytest.mark.plugins
async def test_learning_from_what_a_run_left(tmp_path: Path) -> None:
    saved_policy(tmp_path / "policy", 1)
    source = made(tmp_path, Watch(), run="source", algorithm=GRPO(group_size=4), steps=2, batch_size=3)
    await source.afit(talk, TASKS, TASKS[:2])
    place = str(tmp_path / "runs" / "source")
    for name, settings, items in (
        ("sft", {}, 24),
        ("rejection", {"best": 1}, None),
        ("dpo", {"beta": 0.5}, None),
    ):
        watch = Watch()
        run = made(
            tmp_path,
            watch,
            run=name,
            algorithm=name,
            settings={"runs": [place], **settings},
            steps=3,
            batch_size=4,
        )
        summary = await run.afit(talk, (), TASKS[:2])
        stored, reports = summary["stored"], watch.reports
        assert stored["rollouts"] == 24 + 4 + 4, "those of training and of four evaluations"
        assert stored["left_out"]["not-training"] == 8
        per_item = 2 if name == "dpo" else 1
        others = sum(n for reason, n in stored["left_out"].items() if "/" not in reason)
        assert per_item * stored["items"] + others == 32 and stored["items"] == (items or stored["items"]) > 0
        assert summary["learned"] and [r.policy_version for r in reports] == [1, 2, 3]
        assert all(r.metrics["rollouts"] == per_item * min(4, stored["items"]) for r in reports)
        if name == "dpo":
            assert reports[0].metrics["dpo/margin"] == pytest.approx(0.0, abs=1e-6)
            assert reports[0].metrics["dpo/loss"] == pytest.approx(math.log(2), abs=1e-6)
            assert reports[-1].metrics["dpo/margin"] != 0.0
        else:
            assert reports[0].metrics["rows"] >= 4
        assert torch.isfinite(torch.tensor(reports[-1].metrics["grad_norm"]))


@pytest.mark.slow
@pytest.mark.plugins
async def test_a_resumed_run_keeps_its_reference_and_its_order(tmp_path: Path) -> None:
    saved_policy(tmp_path / "policy", 1)
    source = made(tmp_path, Watch(), run="source", algorithm=GRPO(group_size=4), steps=1, batch_size=4)
    await source.afit(talk, TASKS)
    given: dict[str, Any] = {
        "algorithm": "dpo",
        "settings": {"runs": [str(tmp_path / "runs" / "source")]},
        "batch_size": 2,
        "options": {**OPTIONS, "save_every": 1, "digest_every": 1},
    }
    whole, first, second = Watch(), Watch(), Watch()
    await made(tmp_path, whole, run="whole", steps=3, **given).afit(talk)
    await made(tmp_path, first, run="r", steps=2, **given).afit(talk)
    await made(tmp_path, second, run="r", resume=True, steps=3, **given).afit(talk)
    digests = [r.params_digest for r in whole.reports]
    assert [r.params_digest for r in (*first.reports, *second.reports)] == digests and len(digests) == 3


@pytest.mark.plugins
@pytest.mark.slow
async def test_what_cannot_be_learned_from_is_said(tmp_path: Path) -> None:
    saved_policy(tmp_path / "policy", 1)
    source = made(
        tmp_path,
        Watch(),
        run="source",
        algorithm=GRPO(group_size=1, baseline="none", scale="none"),
        steps=1,
        batch_size=2,
    )
    await source.afit(talk, TASKS)
    settings = {"runs": [str(tmp_path / "runs" / "source")]}
    run = made(tmp_path, Watch(), run="d", algorithm="dpo", settings=settings, steps=1)
    writer = SQLiteStore(tmp_path / "runs" / "source" / "store.sqlite")  # its run may still be under way
    with pytest.raises(UsageError, match=r"none of 2 rollouts .* can be learned from \(2 group-of-one\)"):
        await run.afit(talk)
    await writer.close()
