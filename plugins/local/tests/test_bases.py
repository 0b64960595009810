"""Policies with LoRA over one base: what is in memory once, and that nobody notices who shares it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from agentlightning.types import LLM, Recipe
from agentlightning.types.work import PolicyFolder
from agl_local import bases
from agl_local.bases import Member, SharedBase, same_files
from agl_local.driver import LocalDriver
from agl_local.generation.engine import Engine, EngineError, Request
from agl_local.generation.loop import EngineLoop
from agl_local.http.process import Beside, Tenant
from agl_local.http.thread import EngineThread
from agl_local.http.vllm_engine import VllmEngine
from agl_local.network.linear import Linear
from agl_local.network.lora import Lora, LoraError, adapt, adapted, become_base, starting_point
from agl_local.network.memory import STATES, base_bytes, lora_count
from agl_local.network.model import CausalLM, LanguageModel
from agl_local.network.product import Matrix
from agl_local.network.sampling import Sampling
from agl_local.network.shape import NetworkShape
from agl_local.options import read_options
from agl_local.policy.folder import fingerprint, load_policy, published, state
from plugins.local.tests.driver_fixtures import saved_policy, tiny_policy
from plugins.local.tests.engine_fixtures import ask
from plugins.local.tests.test_driver_loop import RECIPE, FakeJob, post

OPTIONS: dict[str, Any] = {
    "engine": "thread", "threads": 1, "lr": 3e-2, "lora": {"rank": 8, "alpha": 16}, "max_len": 128,
    "max_num_seqs": 16,
}  # fmt: skip
SHAPE = NetworkShape(32, 64, 2, 4, 2, 8, 259, tied=False, qkv_bias=True)
PROMPT = [5, 6, 7, 8, 9]
KINDS = [None, "int8", "nf4"]


def drivers_of(
    folders: dict[str, Path],
    each: dict[str, dict[str, Any]] | None = None,
    recipe: Recipe = RECIPE,
    **more: Any,
) -> dict[str, LocalDriver]:
    """Drivers of one run, put together as a run does it."""
    given = {name: {**OPTIONS, **more, **(each or {}).get(name, {})} for name in folders}
    policies = [PolicyFolder(folder, options=given[name], name=name) for name, folder in folders.items()]
    drivers = {one.name: LocalDriver(one, recipe) for one in policies}
    gateway: Any = None
    bases.train_together(policies, drivers, gateway)
    return drivers


def network(driver: LocalDriver) -> CausalLM:
    model = driver._loaded().model
    assert isinstance(model, CausalLM)
    return model


def served(driver: LocalDriver) -> CausalLM:
    assert driver._engines is not None
    (engine,) = driver._engines.each
    assert isinstance(engine, EngineThread) and isinstance(engine.engine._model, CausalLM)
    return engine.engine._model


def memory(model: nn.Module) -> dict[int, int]:
    """Where the numbers of a network lie, and their bytes; adapters left out."""
    own = [p for name, p in model.named_parameters() if "lora_" not in name]
    found = {p.data_ptr(): p.nbytes for p in own}
    quantised = [m.quantized for m in model.modules() if isinstance(m, Linear) and m.quantized is not None]
    found |= {one.codes.data_ptr(): one.codes.nbytes for one in quantised}
    return found | {one.scales.data_ptr(): one.scales.nbytes for one in quantised}


def small(model: nn.Module) -> int:
    """Bytes of adapters."""
    return sum(p.nbytes for name, p in model.named_parameters() if "lora_" in name)


def blocks(model: nn.Module) -> set[int]:
    """What large products are prepared with."""
    packed = (getattr(module, "packed", None) for module in model.modules())
    return {id(matrix) for matrix in packed if isinstance(matrix, Matrix)}


def shuffled(model: LanguageModel, seed: int) -> LanguageModel:
    """With a B that is far from 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in adapted(model).values():
            layer.lora_B.normal_(0.0, 0.2, generator=generator)
    return model


# --------------------------------------------------------------------------------------------- who shares
def member(folder: Path, name: str = "a", **options: Any) -> Member:
    return Member(folder, name, read_options({**OPTIONS, **options}))


def test_who_shares_a_base(tmp_path: Path) -> None:
    folder, other = saved_policy(tmp_path / "policy"), saved_policy(tmp_path / "other", seed=1)
    copied = Path(shutil.copytree(folder, tmp_path / "copied"))
    one = member(folder)
    for same in (
        member(folder, "b"),
        member(copied),
        member(folder, lora={"rank": 2, "targets": "q_proj"}, lr=1.0, max_len=64, max_num_seqs=2),
    ):
        assert one.shares(same) and same.shares(one)
    for apart in (
        member(other),
        member(tmp_path / "nowhere"),
        member(folder, lora=None),
        member(folder, dtype="bfloat16"),
        member(folder, quantize="int8"),
        member(folder, engine="process"),
        member(folder, deterministic=True),
    ):
        assert not one.shares(apart) and not apart.shares(one)
    (copied / "tokenizer_config.json").write_text("{}")
    assert not same_files(folder, copied)


def test_policies_that_could_share_and_do_not_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, other = saved_policy(tmp_path / "policy"), saved_policy(tmp_path / "other", seed=1)
    drivers_of({"a": folder, "b": folder, "c": other}, {"c": {"dtype": "bfloat16"}})
    assert not caplog.records
    drivers_of({"a": folder, "b": folder}, {"b": {"dtype": "bfloat16", "engine_threads": 2}})
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("policies a and b train LoRA over the same files")
    assert said.endswith("of their options, dtype and engine_threads would have to be the same")


def test_groups_of_a_run(tmp_path: Path) -> None:
    a, b = saved_policy(tmp_path / "a"), saved_policy(tmp_path / "b", seed=1)
    drivers = drivers_of({"1": a, "2": b, "3": a, "4": b, "5": a}, {"5": {"lora": None}})
    of = {name: driver._base for name, driver in drivers.items()}
    assert of["1"] is of["3"] is not None and of["2"] is of["4"] is not None
    assert of["1"] is not of["2"] and of["5"] is None
    assert drivers_of({"1": a, "2": b})["1"]._base is None, "nobody to share with"


# ----------------------------------------------------------------------------------------------- in memory
@pytest.mark.parametrize("quantize", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_the_base_is_in_memory_once(tmp_path: Path, dtype: str, quantize: str | None) -> None:
    """By addresses, and by the formulas of docs/contributing/memory.md. A thread has the trainer's base, or
    one rounded copy; quantised matrices are never copied.
    """
    folder = saved_policy(tmp_path / "policy")
    recipe = Recipe(name="r", group_size=16, kl=0.1)
    each = {"b": {"lora": {"rank": 3, "targets": "q_proj"}}, "c": {"lora": {"rank": 8}}}
    drivers = drivers_of(dict.fromkeys("abc", folder), each, recipe, quantize=quantize, dtype=dtype)
    try:
        for driver in drivers.values():
            await driver.start()
            await driver._call(driver._updater)
        trained = [network(driver) for driver in drivers.values()]
        engines = [served(driver) for driver in drivers.values()]
        references = [driver._reference for driver in drivers.values()]
        base = memory(trained[0])
        assert sum(base.values()) == base_bytes(SHAPE, 4, quantize)
        assert all(memory(model) == base for model in (*trained, *(one for one in references if one)))
        rounded = memory(engines[0])
        assert sum(rounded.values()) == base_bytes(SHAPE, 4 if dtype == "float32" else 2, quantize)
        assert all(memory(model) == rounded for model in engines)
        if dtype == "float32":
            assert rounded == base
        shared = blocks(engines[0])
        assert shared and all(blocks(model) == shared for model in engines)
        # what each has of its own: A, B and moments
        assert small(trained[0]) == 4 * lora_count(SHAPE, 8) == small(trained[2]) > small(trained[1])
        own = [{p.data_ptr() for p in model.parameters() if p.requires_grad} for model in trained]
        assert not own[0] & own[1] and not own[0] & own[2] and all(own)
        assert len({id(driver._updates) for driver in drivers.values()}) == 3
        assert STATES * lora_count(SHAPE, 8) == 4 * small(trained[0])
    finally:
        for driver in drivers.values():
            await driver.close()


def test_a_network_over_a_base_copies_nothing_and_writes_nothing() -> None:
    base = tiny_policy().model
    base.pack()
    before = fingerprint(base)
    one, other = (starting_point(become_base(base)) for _ in "ab")
    for seed, model in enumerate((one, other)):
        adapt(model, Lora(rank=4), seed)
        shuffled(model, seed)
    assert memory(one) == memory(other) == memory(base) and blocks(one) == blocks(other) == blocks(base)
    assert fingerprint(base) == before and len({fingerprint(m) for m in (base, one, other)}) == 3
    assert {name.rpartition(".")[2] for name in published(one)} == {"lora_A", "lora_B"}
    assert state(one).keys() == state(base).keys()


@pytest.mark.parametrize("packed", [True, False])
def test_a_cache_is_served_what_the_whole_sequence_computes(packed: bool) -> None:
    """Prefill and decode through joint matrices of the base, with A and B beside them."""
    base = tiny_policy(std=0.2).model
    if packed:
        base.pack()
    model, ids, at = starting_point(become_base(base)), torch.arange(9)[None], torch.arange(9)[None]
    adapt(model, Lora(rank=4, targets=("q_proj", "v_proj", "up_proj", "down_proj")), 0)
    shuffled(model, 0)
    with torch.no_grad():
        whole, cache, slot = model(ids), model.new_cache(1, 16), torch.tensor([0])
        first = model.step(ids[:, :6], at[:, :6], cache, slot)
        rest = [model.step(ids[:, i : i + 1], at[:, i : i + 1], cache, slot) for i in (6, 7)]
        last = model.step(ids[:, 8:], at[:, 8:], cache, slot, last=torch.tensor([0]))
        found = torch.cat([first, *rest, last[:, None]], dim=1)
        assert (found - whole).abs().max() < 1e-5 and (base(ids) - whole).abs().max() > 0.1


# ----------------------------------------------------------------------------------------------- in service
LORAS = {"a": Lora(rank=4, alpha=8), "b": Lora(rank=2, alpha=8, targets=("q_proj", "up_proj"))}


def adapters(base: LanguageModel, name: str) -> LanguageModel:
    """A trained policy over ``base``."""
    model = starting_point(base)
    adapt(model, LORAS[name], len(name))
    return shuffled(model, ord(name))


@contextmanager
def together(deterministic: bool = False) -> Iterator[dict[str, Engine]]:
    """Two engines over one base, which compute in turn."""
    policy = tiny_policy(std=0.2)
    policy.model.pack()
    base, loop = become_base(policy.model), EngineLoop("engines", 1)
    engines: dict[str, Engine] = {}
    try:
        for name, lora in LORAS.items():
            engines[name] = Engine(
                replace(policy, model=starting_point(base)), keep=False, lora=lora, slots=4, max_len=64,
                name=name, deterministic=deterministic, loop=loop,
            )  # fmt: skip
            engines[name].load_weights(published(adapters(base, name)), 1)
        yield engines
    finally:
        for engine in engines.values():
            engine.close()
        assert loop.thread is None


@contextmanager
def alone(name: str, deterministic: bool = False, sums: bool = False) -> Iterator[Engine]:
    """The same policy over a base of its own; or all its weights, as a run of one policy serves them."""
    policy = tiny_policy(std=0.2)
    trained = adapters(become_base(tiny_policy(std=0.2).model), name)
    given: dict[str, Any] = {"slots": 4, "max_len": 64, "threads": 1, "deterministic": deterministic}
    if not sums:
        policy.model.pack()
        policy = replace(policy, model=starting_point(become_base(policy.model)))
        given |= {"keep": False, "lora": LORAS[name]}
    with Engine(policy, name=name, **given) as engine:
        engine.load_weights(state(trained) if sums else published(trained), 1)
        yield engine


def test_greedy_answers_are_those_of_each_alone_to_the_bit() -> None:
    """One request at a time of each engine, so that batches have the same shapes; both at the same time."""
    found: dict[str, list[tuple[list[int], list[float]]]] = {}

    def asked(engine: Engine) -> list[tuple[list[int], list[float]]]:
        prompts = [[*PROMPT, i] for i in range(6)]
        done = [ask(engine, prompt, max_tokens=12, temperature=0.0)[0] for prompt in prompts]
        assert all(set(one.versions) == {1} for one in done)
        return [(one.token_ids, one.logprobs) for one in done]

    with together() as engines:
        threads = [
            threading.Thread(target=lambda e=engine: found.update({e.name: asked(e)}))  # type: ignore[misc]
            for engine in engines.values()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
    assert found["a"] != found["b"]
    for name in LORAS:
        with alone(name) as engine:
            assert asked(engine) == found[name]
        with alone(name, sums=True) as engine:
            for (tokens, logprobs), (others, theirs) in zip(asked(engine), found[name], strict=True):
                assert tokens == others and logprobs == pytest.approx(theirs, abs=1e-5)


def test_many_answers_at_a_time_are_those_of_each_alone_to_the_bit() -> None:
    """Deterministic: whatever shares a batch, and whoever takes the next turn."""

    def asked(engines: list[Engine]) -> list[list[tuple[list[int], list[float]]]]:
        sampling = [Sampling(max_tokens=10, seed=seed, temperature=1.0) for seed in range(5)]
        futures = [[e.submit(Request([*PROMPT, 3], one, n=2)) for one in sampling] for e in engines]
        return [[(c.token_ids, c.logprobs) for f in of for c in f.result(300)] for of in futures]

    with together(deterministic=True) as engines:
        found = asked(list(engines.values()))
    assert found[0] != found[1]
    for name, wanted in zip(LORAS, found, strict=True):
        with alone(name, deterministic=True) as engine:
            assert asked([engine]) == [wanted]


def test_new_weights_of_one_are_not_the_others() -> None:
    with together() as engines:
        a, b = engines.values()
        before = [ask(engine, PROMPT, max_tokens=8, temperature=0.0)[0].logprobs for engine in (a, b)]
        zero = {name: torch.zeros_like(p) for name, p in published(a._model).items()}
        assert a.load_weights(zero, 7) == 7 and (a.version, b.version) == (7, 1)
        a.make_room()
        after = [ask(engine, PROMPT, max_tokens=8, temperature=0.0)[0].logprobs for engine in (a, b)]
        assert after[0] != before[0] and after[1] == before[1]
        with Engine(tiny_policy(std=0.2), slots=4, max_len=64, threads=1) as base:
            assert after[0] == ask(base, PROMPT, max_tokens=8, temperature=0.0)[0].logprobs
        a.close()
        assert ask(b, PROMPT, max_tokens=8, temperature=0.0)[0].logprobs == before[1]


def test_who_cannot_join_and_who_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    loop = EngineLoop("engines", 1)
    with Engine(tiny_policy(), slots=2, max_len=64, name="a", loop=loop) as a:
        thread, policy = loop.thread, tiny_policy()
        monkeypatch.setattr("agl_local.generation.passes.Batched.check", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Engine(policy, slots=2, max_len=64, name="b", loop=loop)
        monkeypatch.undo()
        monkeypatch.setattr(threading, "excepthook", lambda args: None)
        assert ask(a, PROMPT, max_tokens=2) and loop.thread is thread
        with Engine(policy, slots=2, max_len=64, name="b", loop=loop) as b:
            monkeypatch.setattr(b, "_sweep", lambda: (_ for _ in ()).throw(SystemError("broken")))
            with pytest.raises(EngineError, match="its thread failed: SystemError"):
                ask(b, PROMPT)
            with pytest.raises(EngineError, match="does not run: its thread failed"):
                ask(a, PROMPT)
    assert loop.thread is None


@pytest.mark.slow
@pytest.mark.parametrize("quantize", [None, "nf4"])
async def test_one_process_serves_all_and_ends_with_the_last(tmp_path: Path, quantize: str | None) -> None:
    drivers = drivers_of(
        dict.fromkeys("ab", saved_policy(tmp_path / "policy")),
        {"b": {"lora": {"rank": 2}, "max_len": 64}}, engine="process", quantize=quantize,
    )  # fmt: skip
    a, b = drivers.values()
    try:
        llms = [await driver.start() for driver in (a, b)]
        assert llms[0].endpoint == llms[1].endpoint and [llm.model for llm in llms] == ["a", "b"]
        assert a._processes() == b._processes() and len(a._processes()) == 2
        body = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0.0}
        assert logprobs(llms[0], body) == logprobs(llms[1], body), "both are the base yet"
        shuffled(network(a), 1)
        await a._call(a._publish, 1)
        for driver, llm, version in zip((a, b), llms, (1, 0), strict=True):
            answer = post(llm, body)
            assert answer["policy_version"] == version == driver.version
            [choice] = answer["choices"]
            wanted = scores(driver, choice["token_ids"])
            assert choice["logprobs"]["token_logprobs"] == pytest.approx(wanted, abs=1e-5)
        [tenant] = a._engines.each if a._engines is not None else ()
        assert isinstance(tenant, Tenant)
        await a.close()
        assert tenant.process.alive() and logprobs(llms[1], body) and b.engine_died() is None
    finally:
        for driver in (b, a):
            await driver.close()
    assert not tenant.process.alive() and b._base is not None and not b._base._weights


async def test_a_target_that_one_policy_lacks_is_said_of_it_before_an_engine_starts(tmp_path: Path) -> None:
    folder = saved_policy(tmp_path / "policy")
    each = {"checker": {"lora": {"rank": 4, "targets": ["q_prj"]}}}
    drivers = drivers_of({"writer": folder, "checker": folder}, each, engine="process")
    try:
        with pytest.raises(LoraError, match=r"^policy 'checker': lora: targets 'q_prj': .*q_proj"):
            await drivers["writer"].start()
        assert drivers["writer"]._engines is None
    finally:
        for driver in drivers.values():
            await driver.close()


async def test_a_policy_that_never_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    """The process is given up by its tenants, and its shared memory with it."""
    base = SharedBase([member(saved_policy(tmp_path / "policy"), name, engine="process") for name in "ab"])
    engines = base.engines("a", base.policy("a"))
    weights = list(base._weights.values())
    assert len(weights) == 2 and isinstance(engines.each[0], Tenant)
    engines.close()
    engines.close()
    assert not any(one._files for one in weights) and not base._processes


def test_each_policy_has_a_vllm_of_its_own(tmp_path: Path) -> None:
    base = SharedBase([member(saved_policy(tmp_path / "policy"), name, engine="vllm") for name in "ab"])
    policies = [base.policy(name) for name in "ab"]
    assert memory(policies[0].model) == memory(policies[1].model)
    engines = [base.engines(name, policy) for name, policy in zip("ab", policies, strict=True)]
    assert all(isinstance(one, VllmEngine) for of in engines for one in of.each)
    assert engines[0].each[0] is not engines[1].each[0]
    for one in engines:
        one.close()


def test_a_process_over_one_base_is_asked_for_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    from agl_local.http.server import parse_args

    beside = Beside(path="y", name="b", lora=Lora(rank=2), slots=4, max_len=None)
    words = ["--policy", "x", "--beside", msgspec.json.encode(beside).decode()]
    args = parse_args([*words, "--lora", '{"rank":1}'])
    assert args.beside == [beside] and args.lora == Lora(rank=1)
    with pytest.raises(SystemExit):
        parse_args(words)
    assert "--beside is for one --policy, with --lora" in capsys.readouterr().err


def logprobs(llm: LLM, body: dict[str, Any]) -> list[float]:
    [choice] = post(llm, body)["choices"]
    return list(choice["logprobs"]["token_logprobs"])


@torch.no_grad()
def scores(driver: LocalDriver, tokens: list[int]) -> list[float]:
    """As the trainer computes them."""
    logits = network(driver)(torch.tensor([[*PROMPT, *tokens]]))[0, len(PROMPT) - 1 : -1]
    found = torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens)[:, None])
    return [float(value) for value in found[:, 0]]


# -------------------------------------------------------------------------------------------- in training
async def trained(
    drivers: dict[str, LocalDriver], folder: Path, steps: int, first: int = 0
) -> dict[str, Any]:
    """What a few steps of each make: rows and parameters, to the bit."""
    found = {}
    for driver in drivers.values():
        llm = await driver.start()
        if first:
            assert (await driver.resume(folder / driver.name))[0] == first
        job = FakeJob(driver, llm, folder / driver.name, steps, first=first)
        job.policy = driver.name
        found[driver.name] = job
    for name, driver in drivers.items():
        await driver.run(found[name])
    assert max(r.metrics["logprob_gap_max"] for job in found.values() for r in job.reports) < 1e-4
    return {n: [(r.rows_digest, r.params_digest) for r in job.reports] for n, job in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ["int8", None])
async def test_a_run_is_that_of_two_copies_to_the_bit(tmp_path: Path, quantize: str | None) -> None:
    """Over a quantised base engines without a common base are sent A and B too, so all is the same: tokens,
    logprobs, gradients. Over a plain one they are sent the sums, whose products are rounded otherwise; there
    the two copies are two bases, each with a stranger.
    """
    folder = saved_policy(tmp_path / "policy")
    options: dict[str, Any] = {"quantize": quantize, "deterministic": True, "save_every": 2}
    shared = drivers_of(dict.fromkeys("ab", folder), {"b": {"lora": {"rank": 2}}}, **options)
    copies = {
        name: drivers_of({name: folder, **({} if quantize else {"other": folder})},
                         {"b": {"lora": {"rank": 2}}}, **options)[name]
        for name in "ab"
    }  # fmt: skip
    assert all((driver._base is None) == (quantize is not None) for driver in copies.values())
    try:
        found = await trained(shared, tmp_path / "shared", 4)
        assert found == await trained(copies, tmp_path / "copies", 4)
        bytes_ = [memory(network(driver)).keys() for driver in (*shared.values(), *copies.values())]
        assert bytes_[0] == bytes_[1] and not bytes_[0] & bytes_[2] and not bytes_[2] & bytes_[3]
        start = load_policy(folder, quantize=shared["a"].options.quantize).model
        assert fingerprint(starting_point(network(shared["a"]))) == fingerprint(start)
        for name, driver in shared.items():
            out = await driver.export(tmp_path / "out" / name)
            assert fingerprint(load_policy(out).model) == found[name][-1][1] != fingerprint(start)
    finally:
        for driver in (*shared.values(), *copies.values()):
            await driver.close()


@pytest.mark.slow
async def test_policies_over_one_base_go_on_bit_for_bit(tmp_path: Path) -> None:
    folders = dict.fromkeys("ab", saved_policy(tmp_path / "policy"))
    options: dict[str, Any] = {"deterministic": True, "save_every": 2}

    async def life(at: str, steps: int, first: int = 0) -> dict[str, Any]:
        drivers = drivers_of(folders, **options)
        try:
            return await trained(drivers, tmp_path / at, steps, first)
        finally:
            for driver in drivers.values():
                await driver.close()

    straight = await life("whole", 4)
    assert await life("parts", 2) == {name: steps[:2] for name, steps in straight.items()}
    assert await life("parts", 4, first=2) == {name: steps[2:] for name, steps in straight.items()}
    for name in folders:
        made = tmp_path / "parts" / name / "checkpoints" / "step-000004"
        assert fingerprint(load_policy(made / "policy").model) == straight[name][-1][1]
        assert (made / "adapter" / "adapter_model.safetensors").is_file()
