"""The same rows have the same gradient, whether agl-local trains its own adapter or the server does.

Both begin with the same matrices, A drawn by one seed and B set to numbers that are not 0: else half the
gradient would be 0 whatever the loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

pytest.importorskip("tinker.types")

from agentlightning.types import Correction, Recipe, Row
from agl_local.network.lora import Lora, adapt, adapted, starting_point
from agl_local.network.model import CausalLM
from agl_local.policy.folder import load_policy
from agl_local.training import update as local_update
from agl_local.training.optim import StepResult
from agl_local.training.update import Updater
from agl_tinker.client import Client, done
from agl_tinker.options import Options
from agl_tinker.server import adapter as served_adapter
from agl_tinker.update import RemoteUpdater
from plugins.local.tests.driver_fixtures import make_row
from plugins.tinker.tests.running import Running

SEED, RANK, VERSION = 7, 4, 3
PLAIN = Recipe(name="grpo", correction=None)
RECIPES = {
    "clip": PLAIN,
    "two ranges": msgspec.structs.replace(PLAIN, clip_low=0.05, clip_high=0.3),
    "dual clip": msgspec.structs.replace(PLAIN, clip_ratio_c=1.1),
    "cispo": msgspec.structs.replace(PLAIN, loss="cispo"),
    "reinforce": msgspec.structs.replace(PLAIN, loss="reinforce"),
    "sequence": msgspec.structs.replace(PLAIN, ratio_level="sequence"),
    "kl": msgspec.structs.replace(PLAIN, kl=0.1),
    "corrected": Recipe(name="corrected", correction=Correction(threshold=0.0, cap=1.05)),
    "corrected by call": Recipe(name="corrected", correction=Correction(threshold=0.0, level="sequence")),
    "stale": Recipe(name="stale", max_staleness=2, importance_cap=1.02),
    "two mini-batches": msgspec.structs.replace(PLAIN, minibatches=2),
}


def fill(network: Any) -> None:
    """Set every B to numbers drawn by a seed."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in adapted(network).values():
            layer.lora_B.copy_(torch.randn(layer.lora_B.shape, generator=generator) * 0.05)


def vector(network: Any) -> torch.Tensor:
    return torch.cat(
        [
            getattr(layer, kind).grad.flatten()
            for layer in adapted(network).values()
            for kind in ("lora_A", "lora_B")
        ]
    )


def rows_of(model: CausalLM) -> list[Row]:
    """Rows of two calls each, with logprobs a little other than the network's; one is of an older version."""
    generator = torch.Generator().manual_seed(5)
    rows = []
    for i in range(6):
        ids = torch.randint(1, 259, (6 + 3 * i,), generator=generator).tolist()
        spans, shift = [(2, 4), (5, len(ids) - i % 2)], 0.15 * (-1) ** i
        more = {"name": f"r{i}", "weight": 0.01 * (i + 1), "version": VERSION - (i == 2), "shift": shift}
        rows.append(make_row(model, ids, spans, [(-1.0) ** i, 0.5 * i], **more))  # type: ignore[arg-type]
    return rows


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Tensor]]:
    """The gradient of each optimizer step on either side; the step itself is not made."""
    found: list[torch.Tensor] = []

    def spy(model: torch.nn.Module, optimizer: torch.optim.Optimizer, *_: object) -> StepResult:
        found.append(vector(model))
        optimizer.zero_grad(set_to_none=True)
        return StepResult(1.0, True)

    monkeypatch.setattr(local_update, "clip_and_step", spy)
    monkeypatch.setattr(served_adapter, "clip_and_step", spy)
    yield found


async def remote(
    served: Running, rows: list[Row], recipe: Recipe, options: Options, reference: torch.Tensor
) -> dict[str, float]:
    """The metrics of an update on the server."""
    client = Client(options)
    await client.open()
    await client.create(SEED)
    (model_id,) = served.server.models._open
    fill(served.call(served.server.models.get(model_id)).adapter.network)
    by_row = dict(
        zip([r.row_id for r in rows], reference.split([r.trained_tokens for r in rows]), strict=True)
    )

    async def known(asked: Any) -> torch.Tensor:
        return torch.cat([by_row[row.row_id] for row in asked])

    updater = RemoteUpdater(client, recipe, options, vocab_size=259, seed=0, reference=known)
    metrics, then = await updater.update(rows, VERSION, client.sampler)
    await done(then)
    await client.close()
    return metrics


def local(
    folder: Path, rows: list[Row], recipe: Recipe, steps: list[torch.Tensor]
) -> tuple[list[torch.Tensor], dict[str, float], torch.Tensor]:
    """Gradients and metrics of agl-local, and the starting policy's logprobs of the trained tokens."""
    model = load_policy(folder).model
    adapt(model, Lora(rank=RANK, alpha=32.0), SEED)
    start = starting_point(model)
    fill(model)
    metrics = Updater(model, recipe, seed=0, reference=start, share=False).update(rows, VERSION)
    found = list(steps)
    steps.clear()
    with torch.no_grad():
        parts = []
        for row in rows:
            every = torch.log_softmax(start(torch.tensor([list(row.token_ids)]))[0].double(), -1)
            at = [t for t, on in enumerate(row.mask) if on]
            parts.append(torch.stack([every[t - 1, row.token_ids[t]] for t in at]))
    return found, metrics, torch.cat(parts)


def options(served: Running, **more: Any) -> Options:
    return Options(base_model="tiny", base_url=served.url, rank=RANK, **more)


@pytest.mark.parametrize("name", RECIPES)
async def test_a_computed_loss_has_the_local_drivers_gradient(
    served: Running, folder: Path, steps: list[torch.Tensor], name: str
) -> None:
    rows = rows_of(load_policy(folder).model)
    ours, expected, reference = local(folder, rows, RECIPES[name], steps)
    metrics = await remote(served, rows, RECIPES[name], options(served), reference)
    assert len(steps) == len(ours) == RECIPES[name].minibatches
    for theirs, mine in zip(steps, ours, strict=True):
        assert mine.norm() > 1e-3
        assert (theirs - mine).norm() / mine.norm() < 1e-4
    known = ["loss", "clip_fraction", "approx_kl", "tokens_trained", "tokens_stale"]
    if RECIPES[name].minibatches == 1:  # of several, agl-local measures the later ones too, by one more pass
        known.append("logprob_gap_max")
    for key in known:
        assert metrics[key] == pytest.approx(expected[key], abs=1e-4), key


@pytest.mark.parametrize("loss", ["clip", "cispo", "reinforce"])
async def test_a_loss_of_the_servers_has_the_local_drivers_gradient(
    served: Running, folder: Path, steps: list[torch.Tensor], loss: str
) -> None:
    recipe = Recipe(name=loss, loss=loss, minibatches=2, correction=None, off_policy_cap=None)
    rows = rows_of(load_policy(folder).model)
    ours, expected, reference = local(folder, rows, recipe, steps)
    metrics = await remote(served, rows, recipe, options(served, loss="native"), reference)
    assert len(steps) == len(ours) == 2
    for theirs, mine in zip(steps, ours, strict=True):
        assert mine.norm() > 1e-3
        assert (theirs - mine).norm() / mine.norm() < 1e-4
    for key in ("loss", "clip_fraction", "approx_kl"):
        assert metrics[key] == pytest.approx(expected[key], abs=1e-4), key
