"""Importance weights between engine and trainer: numbers by hand, and gradients against the true one."""

from __future__ import annotations

import copy
import itertools
import math

import msgspec
import pytest
import torch
from plugins.local.driver_fixtures import gradients, make_row, relative, tiny_model
from plugins.local.test_driver_update import caught as caught

from agentlightning.credit.checks import check_recipe
from agentlightning.recipes import get
from agentlightning.types import Correction, Recipe, Row
from agl_local.network.model import CausalLM
from agl_local.training.correction import correction_metrics, ratios, weigh
from agl_local.training.loss import Terms, policy_loss
from agl_local.training.update import Updater

TRAINER = torch.tensor([0.2, 0.6, 0.3, 0.1], dtype=torch.float64).log()
ENGINE = torch.tensor([0.1, 0.2, 0.4, 0.4], dtype=torch.float64).log()
CALLS = torch.tensor([0, 0, 1, 1])
"""Ratios 2, 3, 3/4, 1/4; of the calls 6 and 3/16."""


@pytest.mark.parametrize(
    ("rule", "weights"),
    [
        (Correction(), [2.0, 2.0, 0.75, 0.25]),
        (Correction(cap=2.5), [2.0, 2.5, 0.75, 0.25]),
        (Correction(kind="mask"), [2.0, 0.0, 0.75, 0.0]),  # kept from 1/2 to 2
        (Correction(kind="mask", cap=3.5, floor=0.2), [2.0, 3.0, 0.75, 0.25]),
        (Correction(level="sequence", cap=5.0), [5.0, 5.0, 0.1875, 0.1875]),
        (Correction(level="sequence", kind="mask", cap=8.0), [6.0, 6.0, 0.1875, 0.1875]),
        (Correction(level="sequence", kind="mask", cap=4.0), [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_weights_by_hand(rule: Correction, weights: list[float]) -> None:
    """And the gradient of a token is ``−weight · c · A``, at ratio 1 whatever the engine said."""
    found = weigh(ratios(TRAINER - ENGINE, CALLS, rule), rule.cap, rule)
    assert found.tolist() == pytest.approx(weights)
    logp = TRAINER.clone().requires_grad_()
    a = torch.tensor([1.0, -1.0, 2.0, 0.5], dtype=torch.float64)
    w = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    terms = Terms(logp, ENGINE, a, w, CALLS, torch.zeros(4, dtype=torch.bool))
    total = policy_loss(terms, Recipe(name="r", correction=rule), corrected=True).total
    (grad,) = torch.autograd.grad(total, logp)
    torch.testing.assert_close(grad, -w * torch.tensor(weights, dtype=torch.float64) * a)


def test_metrics_by_hand() -> None:
    found = [torch.tensor([2.0, 3.0]), torch.tensor([0.75, 0.25])]
    said = correction_metrics(found, Correction(kind="mask", cap=2.5), corrected=True, gap=0.9)
    assert said == {
        "correction/ratio_mean": 1.5, "correction/ratio_p99": 3.0, "correction/ratio_max": 3.0,
        "correction/gap": 0.9, "correction/threshold": 0.01, "correction/corrected": 1.0,
        "correction/weight_mean": pytest.approx(2.75 / 4), "correction/truncated_share": 0.0,
        "correction/masked_share": 0.5,
    }  # fmt: skip
    cut = correction_metrics(found, Correction(), corrected=True, gap=0.9)
    assert (cut["correction/truncated_share"], cut["correction/masked_share"]) == (0.25, 0.0)
    off = correction_metrics(found, Correction(), corrected=False, gap=0.001)
    assert off["correction/corrected"] == 0.0 and "correction/masked_share" not in off
    assert correction_metrics([], Correction(), corrected=False, gap=0.0) == {}
    tail = correction_metrics([torch.arange(1.0, 1001.0)], Correction(), corrected=False, gap=0.0)
    assert tail["correction/ratio_p99"] == 990.0


def test_stale_tokens_and_others_have_their_own_caps() -> None:
    logp = TRAINER.clone().requires_grad_()
    ones = torch.ones(4, dtype=torch.float64)
    stale, off = torch.tensor([False, True, True, False]), torch.tensor([False, False, True, True])
    terms = Terms(logp, ENGINE, ones, ones, CALLS, stale, off_policy=off)
    recipe = Recipe(name="r", correction=Correction(cap=1.5), importance_cap=2.5, off_policy_cap=0.5)
    (grad,) = torch.autograd.grad(policy_loss(terms, recipe, corrected=True).total, logp)
    assert grad.tolist() == pytest.approx([-1.5, -2.5, -0.5, -0.25])
    (grad,) = torch.autograd.grad(policy_loss(terms, recipe).total, logp)
    assert grad.tolist() == pytest.approx([0.0, -2.5, -0.5, -0.25])  # fresh: ratio 2, which the clip cuts
    masked = Recipe(name="r", correction=Correction(kind="mask"), importance_cap=2.5, off_policy_cap=0.5)
    (grad,) = torch.autograd.grad(policy_loss(terms, masked, corrected=True).total, logp)
    assert grad.tolist() == pytest.approx([-2.0, 0.0, -0.5, -0.25])  # 3 is beyond the cap of stale tokens


# --------------------------------------------------------------------------- against the true gradient
VOCAB = 7
PROMPT = [1, 2]


def engine_of(model: CausalLM, noise: float) -> CausalLM:
    """The same network with noise on its weights: what rounding and quantising do, only more."""
    engine = copy.deepcopy(model)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in engine.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=draw)
    return engine


def answers(engine: CausalLM) -> list[Row]:
    """Every answer of two tokens, weighed by the probability with which the engine samples it. So a gradient
    over these rows is the expectation under the engine, without a sampling error.
    """
    rows = []
    for number, answer in enumerate(itertools.product(range(VOCAB), repeat=2)):
        reward = math.sin(1.7 * number) + (answer[0] == 3)
        row = make_row(engine, [*PROMPT, *answer], [(2, 4)], [reward], name=f"r{number}")
        probability = math.exp(row.logprobs[2] + row.logprobs[3])
        row.weights[2] = row.weights[3] = probability
        rows.append(row)
    return rows


def true_gradient(model: CausalLM) -> torch.Tensor:
    """Of the expected reward under the trainer's own policy, by autograd alone."""
    model.zero_grad()
    for row in answers(model):
        logp = torch.log_softmax(model(torch.tensor([row.token_ids]))[0], -1)
        chosen = logp[1, row.token_ids[2]] + logp[2, row.token_ids[3]]
        (-row.weights[2] * row.advantages[2] * chosen).backward()
    return gradients(model)


@pytest.mark.parametrize("loss", ["clip", "reinforce"])
def test_a_corrected_gradient_is_nearer_to_the_true_one(loss: str, caught: list[torch.Tensor]) -> None:
    """An engine with noise on its weights: the larger the correction's reach, the nearer."""
    model = tiny_model(vocab=VOCAB, std=0.3)
    true = true_gradient(model)
    rows = answers(engine_of(model, 0.005))

    def error(rule: Correction | None) -> float:
        caught.clear()
        Updater(model, Recipe(name="r", loss=loss, correction=rule)).update(rows, version=0)
        return relative(caught[0], true)

    plain, token = error(None), error(Correction())
    sequence = error(Correction(level="sequence", cap=1e6))
    mask = error(Correction(kind="mask"))
    assert sequence < 1e-3  # unbiased: every answer is weighed by its own ratio
    assert plain > 0.3 and token < 0.7 * plain and mask < 0.7 * plain


# ----------------------------------------------------------------------------- when it acts, and what is said
def noisy(gap: float) -> tuple[CausalLM, list[Row]]:
    model = tiny_model()
    ids = [[1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [7, 8, 9, 10, 11]]
    return model, [
        make_row(model, row, [(2, 5)], [1.0 - i], name=f"r{i}", shift=gap * (-1) ** i)
        for i, row in enumerate(ids)
    ]


@pytest.mark.parametrize(("gap", "corrected"), [(0.0, 0.0), (0.005, 0.0), (0.02, 1.0), (0.5, 1.0)])
@pytest.mark.parametrize("recipe", [Recipe(name="one"), Recipe(name="many", epochs=2, minibatches=2)])
def test_it_acts_above_the_measured_gap(recipe: Recipe, gap: float, corrected: float) -> None:
    model, rows = noisy(gap)
    said = Updater(model, recipe, micro_tokens=6).update(rows, version=0)
    assert said["correction/corrected"] == corrected
    assert said["correction/gap"] == pytest.approx(gap, abs=1e-4) and said["correction/threshold"] == 0.01
    assert said["correction/ratio_max"] == pytest.approx(math.exp(gap), rel=1e-3)


def test_below_the_threshold_nothing_changes(caught: list[torch.Tensor]) -> None:
    model, rows = noisy(0.005)
    Updater(model, Recipe(name="r")).update(rows, version=0)
    Updater(model, Recipe(name="r", correction=None)).update(rows, version=0)
    assert torch.equal(caught[0], caught[1])


def test_the_threshold_and_the_end_of_the_correction_are_settings() -> None:
    model, rows = noisy(0.5)
    off = Updater(model, Recipe(name="r", correction=None)).update(rows, version=0)
    assert not [name for name in off if name.startswith("correction/")]
    high = Updater(model, Recipe(name="r", correction=Correction(threshold=0.6))).update(rows, version=0)
    assert high["correction/corrected"] == 0.0
    always = Updater(model, Recipe(name="r", correction=Correction(threshold=0.0)))
    assert always.update(noisy(0.0)[1], version=0)["correction/corrected"] == 1.0


def test_every_optimizer_step_weighs_by_the_weights_before_the_first(caught: list[torch.Tensor]) -> None:
    """Several epochs do not move what a token weighs: ``proximal`` is the trainer's before the update."""
    model, rows = noisy(0.5)
    Updater(model, Recipe(name="r", epochs=2)).update(rows, version=0)
    Updater(model, Recipe(name="r")).update(rows, version=0)
    torch.testing.assert_close(caught[0], caught[2])
    torch.testing.assert_close(caught[1], caught[2])  # the spy makes no step


def test_a_recipe_says_it_in_a_file_and_mistakes_are_refused() -> None:
    recipe = get("grpo", correction={"kind": "mask", "level": "sequence", "cap": 4.0, "floor": 0.25})
    assert recipe.correction == Correction(kind="mask", level="sequence", cap=4.0, floor=0.25)
    assert msgspec.convert(recipe.model_dump(), Recipe) == recipe
    assert get("grpo", correction=None).uses()["correction"] is None
    for wrong, text in (
        ({"kind": "clip"}, "kind"),
        ({"caps": 2.0}, "caps"),
        ({"level": "row"}, "level"),
    ):
        with pytest.raises(ValueError, match=text):
            get("grpo", correction=wrong)
    for wrong, text in (
        ({"cap": 0.0}, "cap"),
        ({"cap": math.inf}, "cap"),
        ({"floor": 0.5}, "kind: mask"),
        ({"kind": "mask", "floor": 3.0}, "at most cap"),
        ({"kind": "mask", "floor": 0.0}, "above 0"),
        ({"threshold": -1.0}, "not negative"),
        ({"threshold": math.nan}, "finite"),
    ):
        with pytest.raises(ValueError, match=text):
            check_recipe(get("grpo", correction=wrong))


def test_why_is_in_words() -> None:
    on = Correction().reason(0.0234)
    assert "0.0234" in on and "threshold = 0.01" in on and "weighed" in on
    assert "no longer" in Correction().reason(0.001)
