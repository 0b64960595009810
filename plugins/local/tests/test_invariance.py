"""What the deterministic engine refuses: machines that round by neighbour, and models it is not built for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from agentlightning.types import UsageError
from agl_local.generation.engine import Engine, EngineError
from agl_local.generation.invariance import NotInvariant, check, network_of
from agl_local.http.process import EngineProcess
from agl_local.network.tile import TILE, Tiles, Token
from agl_local.policy.folder import Policy, save_policy
from plugins.local.tests.engine_fixtures import small_policy, trained_tokenizer

LINEAR, BMM, LOG_SOFTMAX, CUMSUM = F.linear, torch.bmm, torch.log_softmax, torch.Tensor.cumsum


def by_row(x, *rest):
    """What some kernels do: the last rows of a tile are summed in another order."""
    out = LINEAR(x, *rest)
    out[-3:] *= 1 + 2e-7
    return out


def by_neighbour(x, *rest):
    """As a product whose scale is shared by the batch."""
    return LINEAR(x, *rest) * (1 + 1e-6 * x.mean())


def by_emptiness(x, *rest):
    """As a kernel that leaves out what is zero: it shows where a token has no neighbours."""
    out = LINEAR(x, *rest)
    return out * (1 + 1e-6) if bool((x[1:] == x[1]).all()) else out


def bmm_by_place(a, b):
    out = BMM(a, b)
    out[len(out) // 2 :] *= 1 + 2e-7
    return out


def log_softmax_by_row(x, dim):
    out = LOG_SOFTMAX(x, dim=dim)
    out[0] += 1e-6
    return out


@pytest.mark.parametrize(
    ("where", "name", "broken"),
    [
        (F, "linear", by_row),
        (F, "linear", by_neighbour),
        (F, "linear", by_emptiness),
        (torch, "bmm", bmm_by_place),
        (torch, "log_softmax", log_softmax_by_row),
    ],
)
def test_the_check_finds_what_depends_on_the_batch(monkeypatch, where, name, broken):
    policy = small_policy()
    check(network_of(policy.model))
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(NotInvariant, match=r"cannot be promised here: its .* changed by"):
        Engine(policy, slots=2, max_len=64, deterministic=True, threads=1)
    # Without the promise nothing is refused.
    Engine(policy, slots=2, max_len=64, threads=1).close()


def test_a_refusal_is_one_that_a_person_can_mend_and_an_engines():
    assert issubclass(NotInvariant, UsageError) and issubclass(NotInvariant, EngineError)


def test_what_it_is_not_built_for_is_refused_with_the_reason():
    policy = small_policy()
    half = Policy(small_policy().model.to(torch.bfloat16), policy.tokenizer, policy.config)
    with pytest.raises(NotInvariant, match="dtype float32, not bfloat16; serve it without deterministic"):
        Engine(half, slots=2, max_len=64, deterministic=True)
    with pytest.raises(NotInvariant, match="device cpu, not meta"):
        network_of(small_policy().model.to("meta"))


def test_a_model_of_transformers_is_refused():
    transformers = pytest.importorskip("transformers")
    from agl_local.network.hf import TransformersLM

    tokenizer = trained_tokenizer()
    config = transformers.GPT2Config(vocab_size=tokenizer.vocab_size, n_embd=32, n_layer=1, n_head=2)
    model = TransformersLM(transformers.GPT2LMHeadModel(config).eval())
    with pytest.raises(NotInvariant, match=r"runs through transformers \(TransformersLM\)"):
        Engine(Policy(model, tokenizer, model.config), slots=2, max_len=64, deterministic=True)


@pytest.mark.slow
def test_a_child_says_it_in_one_line(tmp_path):
    folder = save_policy(small_policy(), tmp_path)
    with pytest.raises(EngineError, match=r"ended with status 2; .*\nerror: deterministic serving") as caught:
        EngineProcess(folder, dtype="bfloat16", deterministic=True).start()
    assert "Traceback" not in str(caught.value)


def test_tiles_refuse_what_does_not_fit():
    model = small_policy().model
    tiles = Tiles(network_of(model), 2, 100)
    assert tiles.cache.max_len == 127  # whole blocks, and the last token is never fed
    with pytest.raises(ValueError, match="position 127 is outside"):
        tiles.hidden([Token(5, 0, 127)])
    with pytest.raises(RuntimeError):
        tiles.hidden([Token(5, 0, 0)] * (TILE + 1))
