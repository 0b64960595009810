"""The update phase on a tiny network: its gradient is that of the whole batch, whatever the packing."""

from __future__ import annotations

import copy
import logging
import math
from typing import Any

import msgspec
import pytest
import torch

import agl_local.network.model
from agentlightning.credit.rows import minibatches, set_weights
from agentlightning.types import Recipe, Row
from agl_local.network.model import CausalLM
from agl_local.training.batch import RowError
from agl_local.training.pack import Padded, micro_batches, pack
from agl_local.training.score import logprob_gap
from agl_local.training.update import Updater
from plugins.local.tests.driver_fixtures import gradients, make_row, reference_logprobs, relative, tiny_model

RECIPE = Recipe(name="test")


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Gradients as they are just before each optimizer step; the step itself is not made."""
    found: list[torch.Tensor] = []

    def spy(model: torch.nn.Module, optimizer: torch.optim.Optimizer, *_: object) -> object:
        from agl_local.training.optim import StepResult

        found.append(gradients(model))
        model.zero_grad()
        return StepResult(1.0, True)

    monkeypatch.setattr("agl_local.training.update.clip_and_step", spy)
    return found


def rows_of(model: CausalLM, count: int = 6) -> list[Row]:
    generator = torch.Generator().manual_seed(5)
    rows = []
    for i in range(count):
        ids = torch.randint(1, 29, (6 + 3 * i,), generator=generator).tolist()
        spans = [(2, 4), (5, len(ids) - i % 2)]
        rows.append(make_row(model, ids, spans, [(-1.0) ** i, 0.5 * i], name=f"r{i}", weight=0.01 * (i + 1)))
    return rows


def gradient(
    model: CausalLM, rows: list[Row], caught: list[torch.Tensor], recipe: Recipe = RECIPE, **options: object
) -> torch.Tensor:
    caught.clear()
    Updater(model, recipe, **options).update(rows, version=0)  # type: ignore[arg-type]
    return sum(caught[1:], caught[0])


def by_hand(model: CausalLM, rows: list[Row]) -> torch.Tensor:
    """The gradient of -sum w A logp, row by row without padding (ratio 1)."""
    model.zero_grad()
    for row in rows:
        logp = torch.log_softmax(model(torch.tensor([row.token_ids]))[0] / row.temperature, -1)
        for t, on in enumerate(row.mask):
            if on:
                (-row.weights[t] * row.advantages[t] * logp[t - 1, row.token_ids[t]]).backward(
                    retain_graph=True
                )
    return gradients(model)


def test_gradient_equals_the_unpadded_sum_row_by_row(caught: list[torch.Tensor]) -> None:
    model = tiny_model()
    rows = rows_of(model)
    assert relative(gradient(model, rows, caught), by_hand(model, rows)) < 1e-5


@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
def test_micro_batches_padding_and_order_do_not_change_the_gradient(
    caught: list[torch.Tensor], ratio_level: str
) -> None:
    model = tiny_model()
    rows = rows_of(model)
    recipe = Recipe(name="r", ratio_level=ratio_level, entropy=0.01, kl=0.1)  # type: ignore[arg-type]
    whole = gradient(model, rows, caught, recipe, micro_tokens=10_000)
    for micro in (1, 30, 45):
        assert relative(gradient(model, rows[::-1], caught, recipe, micro_tokens=micro), whole) < 1e-6


def test_the_order_in_which_rows_arrive_changes_no_bit(caught: list[torch.Tensor]) -> None:
    model = tiny_model()
    rows = [*rows_of(model), *siblings(model)]
    assert torch.equal(gradient(model, rows, caught), gradient(model, rows[::-1], caught))


def siblings(model: CausalLM) -> list[Row]:
    """Two prompts with three answers each, of different lengths, and a row of its own."""
    rows = []
    for p, prompt in enumerate(([3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2])):
        for i in range(3):
            ids = [*prompt, *range(1 + i, 6 + 2 * i)]
            spans = [(len(prompt), len(prompt) + 2), (len(prompt) + 3, len(ids))]
            rows.append(make_row(model, ids, spans, [1.0 - i, 0.5], name=f"{p}{i}", weight=0.02))
    return [*rows, make_row(model, [11, 12, 13, 14], [(1, 4)], [1.0], name="alone", weight=0.02)]


@pytest.mark.parametrize("micro", [1, 24, 40, 10_000])
def test_a_shared_prompt_is_computed_once_with_the_same_gradient(
    caught: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch, micro: int
) -> None:
    model = double(tiny_model(), monkeypatch)
    rows = siblings(model)
    recipe = Recipe(name="r", entropy=0.01, kl=0.1)
    apart = gradient(model, rows, caught, recipe, share=False)
    assert relative(gradient(model, rows, caught, recipe, micro_tokens=micro), apart) < 1e-12
    fed: list[int] = []
    model.model.embed_tokens.register_forward_hook(lambda _, ids, __: fed.append(ids[0].numel()))
    metrics = Updater(model, RECIPE, micro_tokens=10_000).update(rows, version=0)
    assert metrics["logprob_gap_max"] < 1e-9
    # Prompts of 8 and 5 tokens, with 4, 5 and 6 tokens that are read after each; and 3 of the last row.
    assert fed == [8 + 5 + 2 * (4 + 5 + 6) + 3]
    assert metrics["tokens_computed"] == fed[0]
    assert metrics["tokens_read"] == 3 * (8 + 5) + 2 * (4 + 5 + 6) + 3


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("recipe", [RECIPE, Recipe(name="r", entropy=0.01, kl=0.1)])
def test_computing_layers_again_changes_no_bit(
    caught: list[torch.Tensor], recipe: Recipe, share: bool
) -> None:
    model = tiny_model()
    rows = [*rows_of(model), *siblings(model)]
    kept = gradient(model, rows, caught, recipe, share=share)
    assert torch.equal(gradient(model, rows, caught, recipe, share=share, recompute=True), kept)


def lopsided(model: CausalLM, recipe: Recipe) -> list[Row]:
    """Two rollouts of many tokens and six of few, weighed by the recipe; one is in two rows, of two calls."""
    rows = []
    for i in range(8):
        answer = [1 + (3 * i + t) % 27 for t in range(24 if i < 2 else 4)]
        spans = [(2, 2 + len(answer) // 2), (2 + len(answer) // 2, 2 + len(answer))]
        rows.append(make_row(model, [5, 1 + i, *answer], spans, [(-1.0) ** i, 0.5], name=f"r{i}"))
    rows[3] = msgspec.structs.replace(rows[3], rollout_id=rows[2].rollout_id)
    set_weights(rows, recipe)
    return rows


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("aggregation", ["rollout", "nested", "call", "token", "constant"])
def test_a_token_weighs_the_same_in_every_minibatch(
    caught: list[torch.Tensor], aggregation: Any, count: int
) -> None:
    """By the rule of ``credit.rows``: each of k steps minimises k · Σ w · loss over its tokens."""
    model = tiny_model()
    recipe = Recipe(name="r", minibatches=count, loss_aggregation=aggregation, loss_divisor=64.0)
    rows = lopsided(model, recipe)
    whole = by_hand(model, rows)
    model.zero_grad()
    Updater(model, recipe, seed=3).update(rows, version=0)
    shares = minibatches(rows, count, seed=3, version=0)
    assert len(caught) == len(shares) == count
    for found, share in zip(caught, shares, strict=True):
        assert relative(found, count * by_hand(model, share)) < 1e-5
    assert relative(sum(caught) / count, whole) < 1e-5  # type: ignore[arg-type]


def test_a_constant_divisor_means_the_same_beside_long_and_short_rollouts(
    caught: list[torch.Tensor],
) -> None:
    """Dr. GRPO (arXiv 2503.20783): in a mini-batch of 2 of 8 rollouts, a token weighs 1 / (2 · L)."""
    model = tiny_model()
    recipe = Recipe(name="r", minibatches=4, loss_aggregation="constant", loss_divisor=1024.0)
    long = [make_row(model, [5, 1, *[3, 4] * 50], [(2, 102)], name=f"l{i}") for i in range(2)]
    short = [make_row(model, [5, 2, 7, 8], [(2, 4)], name=f"s{i}") for i in range(6)]
    rows = [*long, *short]
    set_weights(rows, recipe)
    model.zero_grad()
    Updater(model, recipe, lr=0.0).update(rows, version=0)
    for found, share in zip(caught, minibatches(rows, 4, 0, 0), strict=True):
        weighed = [
            msgspec.structs.replace(row, weights=[4.8828125e-4 * on for on in row.mask]) for row in share
        ]
        assert relative(found, by_hand(model, weighed)) < 1e-5


def test_rows_without_advantage_are_skipped_without_changing_the_gradient(caught: list[torch.Tensor]) -> None:
    model = tiny_model()
    rows = rows_of(model)
    idle = [make_row(model, list(range(1, 12)), [(3, 8)], [0.0], name=f"idle{i}") for i in range(3)]
    alone = gradient(model, rows, caught)
    assert torch.equal(gradient(model, rows + idle, caught), alone)
    metrics = Updater(model, RECIPE).update(rows + idle, version=0)
    assert metrics["tokens_zero_advantage"] == 15
    assert metrics["tokens_trained"] == 60
    assert metrics["logprob_gap_tokens"] == 75  # verified all the same
    # A KL or entropy term reaches them: then they are trained.
    assert Updater(model, Recipe(name="r", entropy=0.1)).update(idle, version=0)["tokens_zero_advantage"] == 0


def test_a_batch_without_any_signal_makes_no_step() -> None:
    model = tiny_model()
    before = copy.deepcopy(model.state_dict())
    updater = Updater(model, RECIPE)
    for rows in ([], [make_row(model, [1, 2, 3, 4], [(2, 4)], [0.0])]):
        metrics = updater.update(rows, version=0)
        assert metrics["optimizer_steps"] == 0 and updater.steps == 0
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def double(model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> CausalLM:
    """A network in float64 throughout."""

    def norm(self: agl_local.network.model.RMSNorm, x: torch.Tensor) -> torch.Tensor:
        return self.weight * torch.nn.functional.rms_norm(x, (x.shape[-1],), None, self.eps)

    monkeypatch.setattr(agl_local.network.model.RMSNorm, "forward", norm)
    return model.double()


def test_one_merged_row_is_two_rows(caught: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    model = double(tiny_model(), monkeypatch)
    ids = [3, 9, 4, 11, 7, 2, 8, 8, 21, 5]
    first = make_row(model, ids[:4], [(2, 4)], [0.7], name="a", weight=0.2)
    second = make_row(model, ids, [(6, 10)], [-0.4], name="b", weight=0.1)
    merged = make_row(model, ids, [(2, 4), (6, 10)], [0.7, -0.4], name="ab")
    merged.weights = [0.2 if t in (2, 3) else 0.1 if t >= 6 else 0.0 for t in range(10)]
    for recipe in (RECIPE, Recipe(name="kl", kl=0.2, entropy=0.05)):
        apart = gradient(model, [first, second], caught, recipe)
        assert relative(gradient(model, [merged], caught, recipe), apart) < 1e-9


def test_opposite_rewards_give_opposite_gradients(caught: list[torch.Tensor]) -> None:
    model = tiny_model()
    ids = [3, 9, 4, 11, 7]
    up = gradient(model, [make_row(model, ids, [(2, 5)], [1.0])], caught)
    down = gradient(model, [make_row(model, ids, [(2, 5)], [-1.0])], caught)
    assert torch.equal(up, -down) and float(up.norm()) > 0


def test_temperature_and_allowed_answers_shape_the_logprobs(caught: list[torch.Tensor]) -> None:
    model = tiny_model()
    answers = [[7, 8], [7, 9], [5]]
    row = make_row(model, [1, 2, 3, 7, 9], [(3, 5)], [1.0], temperature=0.7, allowed={3: answers})
    ended = make_row(model, [1, 2, 5, 0], [(2, 4)], [1.0], name="eos", allowed={2: [[5, 0], [7]]})
    free = make_row(model, [1, 2, 3, 7, 9], [(3, 5)], [1.0], name="free", temperature=1.3)
    gap = logprob_gap(model, [row, ended, free])
    assert gap.max < 1e-5 and gap.tokens == 6
    # The mask matters: a forced token (the only one allowed) has probability 1 and no gradient.
    forced = make_row(model, [1, 2, 3, 7], [(3, 4)], [1.0], allowed={3: [[7]]})
    assert forced.logprobs[3] == 0.0
    assert float(gradient(model, [forced], caught).abs().max()) < 1e-6
    bad = make_row(model, [1, 2, 3, 6], [(3, 4)], [1.0], name="bad")
    bad.allowed = {3: answers}
    with pytest.raises(RowError, match="row bad, position 3: token 6 is not among the allowed"):
        Updater(model, RECIPE).update([bad], version=0)


def test_the_end_token_ends_a_complete_guided_answer() -> None:
    model = tiny_model()
    row = make_row(model, [1, 2, 5, 28], [(2, 4)], [1.0])
    row.allowed = {2: [[5], [5, 6]]}
    logits = model(torch.tensor([[1, 2, 5]]))[0].detach().double()
    first = 0.0  # only token 5 may come first
    second = torch.log_softmax(logits[2, [6, 28]], 0)[1]
    row.logprobs = [0.0, 0.0, first, float(second)]
    assert logprob_gap(model, [row], eos_ids=[28]).max < 1e-5
    with pytest.raises(RowError, match="position 3"):
        logprob_gap(model, [row])  # without the engine's end token, 28 could not have been sampled


def test_the_gap_shows_a_planted_error_and_where_it_is() -> None:
    model = tiny_model()
    rows = rows_of(model)
    assert logprob_gap(model, rows).max < 1e-5
    rows[3].logprobs[6] -= 0.01
    gap = logprob_gap(model, rows, micro_tokens=20)
    assert gap.max == pytest.approx(0.01, rel=1e-2) and gap.worst == ("r3", 6)
    assert Updater(model, RECIPE).update(rows, version=0)["logprob_gap_max"] == pytest.approx(0.01, rel=1e-2)


@pytest.mark.parametrize("recipe", [RECIPE, Recipe(name="many", epochs=2, minibatches=2, importance_cap=2.0)])
def test_stale_tokens_are_reported_apart(recipe: Recipe) -> None:
    model = tiny_model()
    fresh = make_row(model, [1, 2, 3, 4], [(2, 4)], [1.0], name="fresh", version=3)
    stale = make_row(model, [4, 3, 2, 1], [(2, 4)], [1.0], name="stale", version=2, shift=0.3)
    metrics = Updater(model, recipe).update([fresh, stale], version=3)
    assert metrics["logprob_gap_max"] < 1e-5 and metrics["logprob_gap_tokens"] == 2
    assert metrics["logprob_gap_stale_max"] == pytest.approx(0.3, rel=1e-3) and metrics["tokens_stale"] == 2


@pytest.mark.parametrize("recipe", [RECIPE, Recipe(name="many", epochs=2, minibatches=2)])
def test_tokens_that_were_sampled_otherwise_are_measured_apart(recipe: Recipe) -> None:
    """Their recorded logprobs are not the policy's, and that is no gap: it is their weight."""
    model = tiny_model()
    fresh = make_row(model, [1, 2, 3, 4], [(2, 4)], [1.0], name="fresh")
    # Drawn half as likely, and four times as likely, as the policy draws them.
    rare, likely = (
        make_row(model, ids, [(2, 4)], [1.0], name=name, shift=shift)
        for ids, name, shift in (
            ([4, 3, 2, 1], "rare", math.log(2.5)),
            ([4, 3, 1, 2], "likely", -math.log(4)),
        )
    )
    for row in (rare, likely):
        row.segments[0].off_policy = True
        row.logprobs[2:4] = type(row.logprobs)(min(0.0, p) for p in row.logprobs[2:4])
    metrics = Updater(model, recipe).update([fresh, rare, likely], version=0)
    assert metrics["logprob_gap_max"] < 1e-5 and metrics["logprob_gap_tokens"] == 2
    assert metrics["off_policy/tokens"] == 4 and metrics["off_policy/capped"] == 2
    assert metrics["off_policy/weight_mean"] < (2 * 2.0 + 2 * 1.0) / 4
    assert logprob_gap(model, [fresh, rare]).tokens == 2


def test_a_weighed_row_has_the_gradient_of_the_plain_one_times_its_weight(
    caught: list[torch.Tensor],
) -> None:
    model = tiny_model()
    plain = make_row(model, [4, 3, 2, 1], [(2, 4)], [1.0])
    weighed = make_row(model, [4, 3, 2, 1], [(2, 4)], [1.0], shift=-math.log(2) / 10)
    weighed.segments[0].off_policy = True
    assert max(weighed.logprobs) <= 0
    want = gradient(model, [plain], caught) * 2 ** (-1 / 10)
    assert relative(gradient(model, [weighed], caught), want) < 1e-5
    capped = gradient(model, [weighed], caught, Recipe(name="low", off_policy_cap=0.25))
    assert relative(capped, gradient(model, [plain], caught) * 0.25) < 1e-5


def test_a_broken_batch_is_skipped_loudly(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model()
    rows = rows_of(model)
    updater = Updater(model, RECIPE)
    with torch.no_grad():
        kept = model.lm_head.weight[3, 3].item()
        model.lm_head.weight[3, 3] = float("nan")
    before = copy.deepcopy(model.state_dict())
    with caplog.at_level(logging.ERROR):
        metrics = updater.update(rows, version=0)
    assert metrics["steps_skipped"] == 1 and updater.skipped == 1 and updater.steps == 0
    assert metrics["logprob_gap_max"] == float("inf")
    assert "optimizer step skipped" in caplog.text and "r0" in caplog.text
    assert all(
        torch.equal(a, b) or a.isnan().any()
        for a, b in zip(before.values(), model.state_dict().values(), strict=True)
    )
    with torch.no_grad():
        model.lm_head.weight[3, 3] = kept
    assert updater.update(rows, version=0)["optimizer_steps"] == 1


def test_unfit_rows_are_refused_by_name() -> None:
    model = tiny_model()
    updater = Updater(model, Recipe(name="r", ratio_level="sequence"))

    def refused(match: str, **change: object) -> None:
        row = make_row(model, [1, 2, 3, 4], [(2, 4)], [1.0])
        for name, value in change.items():
            setattr(row, name, value)
        with pytest.raises(RowError, match=match):
            updater.update([row], version=0)

    refused("mask has 1 entries for 4", mask=[1])
    refused("position 0: the first token", mask=[1, 0, 0, 0])
    refused("position 2: advantage nan", advantages=[0, 0, float("nan"), 0])
    refused("position 3: weight -1", weights=[0, 0, 1.0, -1.0])
    refused("position 2: logprob 0.5", logprobs=[0, 0, 0.5, -1.0])
    refused("temperature 0.0", temperature=0.0)
    refused("outside the vocabulary of 29", token_ids=[1, 2, 3, 29])
    refused("no trained segment", segments=[])
    refused("no segment starts", allowed={1: [[3]]})
    row = make_row(model, [1, 2, 3, 4], [(2, 4)], [1.0])
    with pytest.raises(RowError, match="twice"):
        updater.update([row, row], version=0)


def test_warm_up_then_a_constant_rate() -> None:
    model = tiny_model()
    updater = Updater(model, RECIPE, lr=1e-3, warmup=3)
    rates = [updater.update(rows_of(model, 2), version=0)["lr"] for _ in range(5)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3])


def test_continues_from_its_state_bit_for_bit() -> None:
    recipe = Recipe(name="r", epochs=2, minibatches=2)
    model = tiny_model()
    updater = Updater(model, recipe, lr=1e-2, seed=7)
    updater.update(rows_of(model), version=0)
    twin = copy.deepcopy(model)
    other = Updater(twin, recipe, lr=1e-2, seed=7)
    other.load_state_dict(copy.deepcopy(updater.state_dict()))
    for m, u in ((model, updater), (twin, other)):
        u.update(rows_of(m), version=0)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_moments_on_the_host_change_no_bit_and_go_on_from_a_checkpoint() -> None:
    """Of a model on the CPU, so that the same operators compute both."""
    model = tiny_model()
    here, away = (Updater(copy.deepcopy(model), RECIPE, lr=1e-2, offload=off) for off in (False, True))
    for updater in (here, away):
        updater.update(rows_of(model), version=0)
    resumed = Updater(copy.deepcopy(away.model), RECIPE, lr=1e-2, offload=True)
    resumed.load_state_dict(copy.deepcopy(away.state_dict()))
    for updater in (here, away, resumed):
        updater.update(rows_of(model), version=0)
    parameters = [list(updater.model.parameters()) for updater in (here, away, resumed)]
    for one, *others in zip(*parameters, strict=True):
        assert all(torch.equal(one, other) for other in others)


@pytest.mark.slow
def test_a_bandit_is_learned() -> None:
    # After [1, 2] the token 7 pays 1, everything else 0: sampled from the model itself, groups of 32.
    model = tiny_model(std=0.02)
    updater = Updater(model, Recipe(name="bandit"), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    rewards = []
    for step in range(25):
        with torch.no_grad():
            probabilities = torch.softmax(model(torch.tensor([[1, 2]]))[0, -1], -1)
        drawn = torch.multinomial(probabilities, 32, replacement=True, generator=generator).tolist()
        reward = sum(token == 7 for token in drawn) / 32
        rewards.append(reward)
        rows = [
            make_row(
                model,
                [1, 2, token],
                [(2, 3)],
                [(token == 7) - reward],
                name=str(i),
                weight=1 / 32,
                version=step,
            )
            for i, token in enumerate(drawn)
        ]
        metrics = updater.update(rows, step)
        assert metrics["logprob_gap_max"] < 1e-4
    assert sum(rewards[:5]) / 5 < 0.3 and sum(rewards[-5:]) / 5 > 0.9


def test_long_vocabularies_are_scored_in_chunks(
    caught: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    rows = rows_of(model)
    recipe = Recipe(name="r", entropy=0.1)
    whole = gradient(model, rows, caught, recipe)
    monkeypatch.setattr("agl_local.training.logprobs.MAX_LOGITS", 29 * 4)
    assert relative(gradient(model, rows, caught, recipe), whole) < 1e-6


@pytest.mark.parametrize("share", [True, False])
def test_tokens_without_alternative_are_not_computed(
    share: bool, caught: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that their first token decides: the rest has probability 1, and costs no position."""
    model = tiny_model()
    answers = [[5, 6, 7, 8, 0], [9, 10], [9, 11, 12, 0]]
    rows = [
        make_row(
            model, [1, 2, 3, *answer], [(3, 3 + len(answer))], [advantage], name=name, allowed={3: answers}
        )
        for name, answer, advantage in zip("abc", answers, (1.0, -0.5, 0.25), strict=True)
    ]
    forced = make_row(model, [1, 4, 7, 8], [(2, 4)], [1.0], name="forced", allowed={2: [[7, 8]]})
    updater = Updater(model, RECIPE, share=share)
    metrics = updater.update([*rows, forced], version=0)
    found = caught.pop()
    assert metrics["logprob_gap_max"] < 1e-5
    assert metrics["logprob_gap_tokens"] == sum(row.trained_tokens for row in [*rows, forced])
    # [1, 2, 3] and then 9 decide; of the forced row [1, 4] is read, and nothing after it.
    assert metrics["tokens_computed"] == (5 if share else 4 * 4)
    every = "agl_local.training.batch.read_lengths"
    monkeypatch.setattr(every, lambda row, _: [t for t, on in enumerate(row.mask) if on])
    whole = Updater(model, RECIPE, share=share).update([*rows, forced], version=0)
    assert relative(found, caught[0]) < 1e-6 and float(found.norm()) > 1e-3
    assert whole["tokens_computed"] > metrics["tokens_computed"]


def test_packing() -> None:
    packed = pack([[5, 6, 7, 8], [9, 1]], [[1, 2], [1]])
    assert isinstance(packed.inputs, Padded)
    assert packed.inputs.ids.tolist() == [[5, 6], [9, 0]] and packed.inputs.lengths.tolist() == [2, 1]
    assert packed.targets.tolist() == [6, 7, 1] and packed.rows.tolist() == [0, 0, 1]
    assert packed.at.tolist() == [0, 1, 2] and packed.needed == 3
    with pytest.raises(ValueError, match=r"cannot train positions 0\.\.0"):
        pack([[1, 2]], [[0]])
    sequences = [[0] * 30] * 5
    groups = micro_batches(sequences, [[n] for n in (3, 10, 4, 25, 9)], max_tokens=20)
    assert groups == [[3], [1, 4], [2, 0]]
    assert reference_logprobs(tiny_model(), [1])[0] == 0.0
    for share in (False, True):
        with pytest.raises(ValueError, match="at least 1"):
            micro_batches([[1, 2]], [[1]], 0, share)
