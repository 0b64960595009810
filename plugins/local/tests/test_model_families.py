"""Families of models, each loaded, served, trained by all weights and by LoRA, taught, resumed, exported.

Each is a tiny random network from the family's own configuration class of transformers; what is computed is
compared with transformers' own forward, gradient and ``generate``.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from agentlightning.types import Recipe, Row
from agl_local.generation.engine import Engine
from agl_local.network.lora import Lora, adapt, adapted
from agl_local.network.model import CausalLM
from agl_local.policy.adapters import add_adapter, save_adapters
from agl_local.policy.checkpoint import latest, load_checkpoint, save_checkpoint
from agl_local.policy.export import export_policy
from agl_local.policy.folder import Policy, fingerprint, load_policy, state
from agl_local.sft.chats import Chat
from agl_local.sft.finetune import SftSettings, finetune
from agl_local.training.optim import clip_and_step
from agl_local.training.score import logprob_gap
from agl_local.training.update import Updater
from plugins.local.tests.driver_fixtures import make_row, relative
from plugins.local.tests.engine_fixtures import ask, logprobs_of
from plugins.local.tests.family_fixtures import FAMILIES, PICTURES, VOCAB, WINDOW, reread, saved_network
from tests.marks import sampled

OWN = {"Llama, SmolLM2", "Mistral", "Qwen2, Qwen2.5", "Qwen3", "SmolLM3"}
ALL = sorted([*FAMILIES, *PICTURES])
LORA = Lora(rank=4, alpha=8)
SHARED, LONG = 24, 40
"""Tokens that prompts have in common, and of a long one: several windows."""


@pytest.fixture
def policy(request: pytest.FixtureRequest, tmp_path: Path) -> Policy:
    return load_policy(saved_network(request.param, tmp_path / "start"))


@pytest.fixture
def theirs(policy: Policy) -> Any:
    assert policy.path is not None
    return reread(policy.path)


def each(*kept: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("policy", sampled(ALL, *map(ALL.index, kept)), indirect=True)


def prompts() -> list[list[int]]:
    """Two with the same beginning, of different lengths, and one that goes on from the first."""
    torch.manual_seed(1)
    one = torch.randint(3, VOCAB, (LONG,)).tolist()
    other = torch.randint(3, VOCAB, (LONG,)).tolist()
    return [one, one[:SHARED] + other[: SHARED // 2]]


@each("Gemma 3", "LFM2", "Qwen3.5", "SmolLM3")
def test_answers_are_those_of_transformers(
    policy: Policy, theirs: Any, request: pytest.FixtureRequest
) -> None:
    family = request.node.callspec.params["policy"]
    assert isinstance(policy.model, CausalLM) == (family in OWN)
    with Engine(policy, slots=6, max_len=128) as engine:
        for prompt in prompts():
            (greedy,) = ask(engine, prompt, max_tokens=WINDOW + 2, temperature=0.0, ignore_eos=True)
            length = {"max_new_tokens": WINDOW + 2, "min_new_tokens": WINDOW + 2}
            whole = theirs.generate(torch.tensor([prompt]), do_sample=False, **length)
            assert greedy.token_ids == whole[0, len(prompt) :].tolist()
            turn = [*prompt, *greedy.token_ids, 7, 9, 11]
            for asked, n in ((prompt, 3), (turn, 1), (turn[:-1], 1)):
                for one in ask(engine, asked, n=n, max_tokens=3, seed=2, ignore_eos=True):
                    want = logprobs_of(policy, asked, one.token_ids)
                    assert one.logprobs == pytest.approx(want, abs=1e-4)
        reused = engine.stats.reused_tokens
        engine.load_weights(state(policy.model), engine.version + 1, timeout=300)
        (again,) = ask(engine, prompts()[1], max_tokens=4, temperature=0.0, ignore_eos=True)
        assert again.token_ids == greedy.token_ids[:4]
    # Of n=3, two take the prompt of the first; a turn goes on where the answer before it ended.
    assert reused >= 3 * (LONG + SHARED)


def rows_of(policy: Policy) -> list[Row]:
    """Two prompts with two answers each, longer than a window, of different lengths."""
    torch.manual_seed(2)
    rows = []
    for i in range(4):
        ids = [*prompts()[i % 2][:12], *torch.randint(3, VOCAB, (6 + 3 * i,)).tolist()]
        rows.append(make_row(policy.model, ids, [(12, len(ids))], [1.0 - i], name=f"r{i}"))  # type: ignore[arg-type]
    return rows


def gradient_of(theirs: Any, rows: list[Row]) -> dict[str, torch.Tensor]:
    """Of the policy gradient, by a plain forward of transformers for each row."""
    theirs.zero_grad()
    for row in rows:
        ids = torch.tensor([row.token_ids])
        logprobs = torch.log_softmax(theirs(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
        weights = torch.tensor(row.weights)[1:] * torch.tensor(row.advantages)[1:]
        (-(weights * logprobs).sum()).backward()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in theirs.named_parameters()}


def updated(policy: Policy, rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """Make a GRPO update, save and resume it; its gradients before clipping."""
    found: dict[str, torch.Tensor] = {}

    def spy(model: Any, *rest: Any) -> Any:
        named = policy.model.weights.named_parameters()
        found.update({name: p.grad.clone() for name, p in named if p.grad is not None})
        return clip_and_step(model, *rest)

    monkeypatch.setattr("agl_local.training.update.clip_and_step", spy)
    updater = Updater(policy.model, Recipe(name="grpo"), lr=1e-2)
    before = fingerprint(policy.model)
    metrics = updater.update(rows, version=0)
    assert metrics["optimizer_steps"] == 1 and metrics["logprob_gap_max"] < 1e-4
    after = fingerprint(policy.model)
    assert after != before
    assert policy.path is not None
    folder = policy.path.parent / "checkpoints"
    save_checkpoint(folder, step=1, version=1, policy=policy, trainer=updater.state_dict())
    gradient = dict(found)
    updater.update(rows, version=0)
    assert fingerprint(policy.model) != after
    checkpoint = latest(folder)
    assert checkpoint is not None
    updater.load_state_dict(load_checkpoint(checkpoint, policy))
    assert fingerprint(policy.model) == after
    return gradient


def same_there(policy: Policy, folder: Path, tolerance: float) -> None:
    """transformers loads the export of ``policy`` and says the same."""
    other = reread(export_policy(policy, folder))
    ids = torch.tensor([prompts()[0]])
    with torch.no_grad():
        assert torch.allclose(other(ids).logits, policy.model(ids), atol=tolerance, rtol=0)


@each("Gemma 4", "Granite 3")
def test_an_update_of_all_weights(
    policy: Policy, theirs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(policy)
    assert logprob_gap(policy.model, rows, micro_tokens=64).max < 1e-5
    want = gradient_of(theirs, rows)
    found = updated(policy, rows, monkeypatch)
    assert found.keys() <= want.keys()
    assert all(not want[name].any() for name in want.keys() - found.keys())
    assert relative(flat(found), flat({name: want[name] for name in found})) < 1e-4
    same_there(policy, tmp_path / "out", 1e-6)


def flat(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


@each("Qwen3.5", "Gemma 3")
def test_an_update_by_lora(
    policy: Policy, theirs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(policy)
    start = copy.deepcopy(dict(state(policy.model)))
    adapt(policy.model, LORA, seed=3)
    layers = adapted(policy.model)
    first = {name: layer.lora_A.detach().clone() for name, layer in layers.items()}
    whole = gradient_of(theirs, rows)
    found = updated(policy, rows, monkeypatch)
    assert found.keys() <= {f"{name}.{kind}" for name in layers for kind in ("lora_A", "lora_B")}
    for name, a in first.items():  # by the chain rule, with B = 0
        want = 2.0 * whole[f"{name}.weight"] @ a.T
        got = found.get(f"{name}.lora_B", torch.zeros_like(want))
        assert (got - want).norm() <= 1e-4 * want.norm() + 1e-7, name
    changed = {name for name, tensor in state(policy.model).items() if not torch.equal(tensor, start[name])}
    assert changed <= {f"{name}.weight" for name in layers} and len(changed) > len(layers) // 2
    same_there(policy, tmp_path / "out", 1e-4)  # the engine and the file have the sum of W and B·A


SAID = [("user", "What is {}?"), ("assistant", "### ANSWER: {}")]
CHATS = [Chat([{"role": role, "content": text.format(i)} for role, text in SAID], None) for i in range(4)]


def test_the_docs_have_a_row_for_each() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    section = page.partition("## Does my model run?")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:4]] for row in section.splitlines() if row[:2] == "| "]
    forward = {family: path for family, _, path in rows[1:]}
    assert {family for family, path in forward.items() if path == "own"} == OWN
    assert forward.keys() == set(ALL)


BOTH = [(name, dtype) for name in ALL for dtype in ("float32", "bfloat16")]


@pytest.mark.parametrize(
    ("policy", "dtype"), sampled(BOTH, BOTH.index(("LFM2", "bfloat16")), BOTH.index(("SmolLM3", "float32"))),
    indirect=["policy"],
)  # fmt: skip
def test_it_is_taught(policy: Policy, tmp_path: Path, dtype: str) -> None:
    """By all weights, and by an adapter beside weights of either precision."""
    assert policy.path is not None
    settings = {"epochs": 2, "batch_size": 4, "warmup": 0.0, "micro_batch_tokens": 128}
    if dtype == "float32":
        report = finetune(copy.deepcopy(policy), CHATS, SftSettings(lr=1e-2, **settings), val=CHATS)  # type: ignore[arg-type]
        assert report.val_losses[-1] < report.val_losses[0] and not report.steps_skipped
    student = load_policy(policy.path, dtype=dtype)
    lora = SftSettings(lr=3e-2, lora=LORA, dtype=dtype, **settings)  # type: ignore[arg-type]
    report = finetune(student, CHATS, lora, val=CHATS, workers=2)
    assert report.val_losses[-1] < report.val_losses[0] and not report.steps_skipped
    digest = fingerprint(policy.model)
    save_adapters(student.model, tmp_path / "adapter", base_sha256=digest)
    other = load_policy(policy.path, dtype=dtype)
    add_adapter(other, tmp_path / "adapter", digest)
    assert fingerprint(other.model) == fingerprint(student.model)
