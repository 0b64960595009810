"""What ``run.py`` does on a card, a stage at a time: ``python -m bench.gpu.stages NAME --device cuda --size
full --out FOLDER`` writes ``FOLDER/NAME.json``. On the pretend device a stage checks what it would check on a
card, and gives no seconds.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata as metadata
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agentlightning.types import Recipe
from agl_local.generation.engine import Engine, Request
from agl_local.http.process import EngineProcess
from agl_local.network.layout import realise
from agl_local.network.model import CausalLM
from agl_local.network.sampling import Sampling
from agl_local.policy.folder import Policy, read_tokenizer, save_policy, state
from agl_local.training.logprobs import token_logprobs
from agl_local.training.pack import pack
from agl_local.training.update import Updater
from agl_local.trie.forward import can_share
from bench.gpu import pretend
from bench.gpu.loads import SHAPES, network, policy, prompts, rows

ROOT = Path(__file__).resolve().parents[2]
BUNDLED = ROOT / "examples" / "quickstart" / "policy"
Found = dict[str, Any]


class Stage:
    """Where a stage runs, and how much of it."""

    def __init__(self, device: str, size: str, out: Path) -> None:
        self.device, self.full, self.out = device, size == "full", out
        self.card = device.startswith("cuda")

    def of(self, full: Any, tiny: Any) -> Any:
        """``full`` or ``tiny``, by the size that was asked for."""
        return full if self.full else tiny

    def network(self, full: str, dtype: torch.dtype = torch.float32) -> CausalLM:
        return network(self.of(full, "tiny"), self.device, dtype)

    def seconds(self, work: Callable[[], object], rounds: int = 3) -> float | None:
        """The median of ``rounds`` after one to warm up; None, and one round, where there is no card."""
        taken = []
        for _ in range(rounds + 1 if self.card else 1):
            self.wait()
            began = time.perf_counter()
            work()
            self.wait()
            taken.append(time.perf_counter() - began)
        return round(statistics.median(taken[1:]), 5) if self.card else None

    def wait(self) -> None:
        """Until the device is done."""
        torch.get_device_module(self.device).synchronize()

    def peak_gb(self) -> float | None:
        """Memory of the card at most, since :meth:`free`."""
        return round(torch.cuda.max_memory_allocated() / 1e9, 2) if self.card else None

    def free(self) -> None:
        """Give back what is no longer used, and measure the peak anew."""
        gc.collect()
        if self.card:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def env(stage: Stage) -> Found:
    """Versions; on a card its bandwidth, products and what a launch costs the host."""
    found: Found = {"python": sys.version.split()[0], "cores": os.cpu_count(), "versions": {}}
    for name in ("torch", "transformers", "triton", "agl-core", "agl-local"):
        with suppress(metadata.PackageNotFoundError):
            found["versions"][name] = metadata.version(name)
    size = stage.of(8192, 64)
    x, y = (torch.randn(size, size, device=stage.device) for _ in range(2))
    big = torch.empty(size * size * 4, dtype=torch.uint8, device=stage.device)
    for name, dtype, precision in (
        ("float32", torch.float32, "highest"),
        ("tf32", torch.float32, "high"),
        ("bfloat16", torch.bfloat16, "highest"),
    ):
        torch.set_float32_matmul_precision(precision)
        a, b = x.to(dtype), y.to(dtype)
        seconds = stage.seconds(partial(torch.matmul, a, b), 10)
        found[f"tflops_{name}"] = seconds and round(2 * size**3 / seconds / 1e12, 1)
    torch.set_float32_matmul_precision("highest")
    copied, small = stage.seconds(big.clone, 10), x[:64, :64].clone()
    launched = stage.seconds(lambda: [small.mul_(1.0) for _ in range(1000)])
    return {
        **found,
        "copy_gb_per_s": copied and round(2 * big.numel() / copied / 1e9),
        "launch_us": launched and round(launched * 1e3, 2),
        "ok": bool((x @ y).isfinite().all()),
    }


def parity(stage: Stage) -> Found:
    """|engine − trainer| and |engine − transformers| over sampled tokens, in nats, by the engine's type."""
    trainer = stage.network("0.6b")
    vocab, (count, new) = trainer.config.vocab_size, stage.of((32, 48), (4, 8))
    asked = [prompt[: 8 + 3 * i] for i, prompt in enumerate(prompts(vocab, count, 120, seed=1))]
    found: Found = {}
    for dtype in (torch.float32, torch.bfloat16):
        served = policy(realise(trainer, dtype, torch.device(stage.device)))
        answers = _answers(served, asked, new, slots=32)
        whole = [[*p, *a] for p, (a, _) in zip(asked, answers, strict=True)]
        at = [list(range(len(p), len(w))) for p, w in zip(asked, whole, strict=True)]
        said = torch.tensor([value for _, logprobs in answers for value in logprobs])
        with torch.no_grad():
            packed = pack(whole, at, can_share(trainer)).to(stage.device)
            scored = token_logprobs(trainer, packed).logprobs.float().cpu()
        name = str(dtype).removeprefix("torch.")
        found[name] = {"tokens": len(said), "trainer": float((said - scored).abs().max())}
        found[name]["transformers"] = float((said - _theirs(trainer, whole, at, stage.device)).abs().max())
    exact = found["float32"]
    return {**found, "ok": max(exact["trainer"], exact["transformers"]) < 1e-3}


def _answers(
    served: Policy, asked: Sequence[list[int]], new: int, slots: int
) -> list[tuple[list[int], list[float]]]:
    """Tokens and logprobs of an answer to each prompt."""
    with Engine(served, keep=False, slots=slots, max_len=256) as engine:
        waiting = [
            engine.submit(Request(p, Sampling(max_tokens=new, seed=i, ignore_eos=True)))
            for i, p in enumerate(asked)
        ]
        done = [one.result(300)[0] for one in waiting]
    return [(one.token_ids, one.logprobs) for one in done]


def _twin(model: CausalLM, dtype: torch.dtype, device: str) -> Any:
    """transformers' own network with the weights of ``model``."""
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = model.config.to_hf()
    config = AutoConfig.for_model(raw.pop("model_type"), **{k: v for k, v in raw.items() if "dtype" not in k})
    with torch.device(device):  # where it takes no time to draw weights that are replaced
        other = AutoModelForCausalLM.from_config(config, dtype=dtype)
    other.load_state_dict(dict(state(model)), strict=False)
    return other.eval()


def _theirs(
    model: CausalLM, whole: Sequence[list[int]], at: Sequence[list[int]], device: str
) -> torch.Tensor:
    """The logprobs that transformers gives to the tokens ``at`` some positions."""
    other, found = _twin(model, torch.float32, device), []
    with torch.no_grad():
        for ids, places in zip(whole, at, strict=True):
            logits = other(torch.tensor([ids], device=device)).logits[0].float().cpu()
            logprobs = torch.log_softmax(logits, -1)
            found += [float(logprobs[place - 1, ids[place]]) for place in places]
    return torch.tensor(found)


def decode(stage: Stage) -> Found:
    """Milliseconds of a decode step by the number of conversations: the engine's, and transformers'
    ``generate``. What an answer of many tokens takes beyond one of few, by their steps; so prefill is left
    out.
    """
    conversations, prompt, few, many = stage.of(((1, 8, 64, 256), 128, 8, 72), ((1, 4), 16, 2, 6))
    model = stage.network("1.7b", torch.bfloat16)
    found: Found = {"new": many}

    def ours(engine: Engine, count: int, new: int) -> int:
        asked = prompts(model.config.vocab_size, count, prompt, seed=new)
        waiting = [
            engine.submit(Request(p, Sampling(max_tokens=new, seed=i, ignore_eos=True)))
            for i, p in enumerate(asked)
        ]
        return sum(len(one.result(300)[0].token_ids) for one in waiting)

    with Engine(policy(model), slots=max(conversations), max_len=256) as served:
        for count in conversations:
            found["ok"] = ours(served, count, many) == count * many and found.get("ok", True)
            found[f"engine_{count}"] = _step(stage, partial(ours, served, count), few, many)
    del served
    found["peak_gb"] = stage.peak_gb()
    stage.free()
    other = _twin(model, torch.bfloat16, stage.device)

    def theirs(count: int, new: int) -> None:
        ids = torch.tensor(prompts(model.config.vocab_size, count, prompt), device=stage.device)
        lengths = {"max_new_tokens": new, "min_new_tokens": new, "pad_token_id": 0, "eos_token_id": None}
        other.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, **lengths)

    for count in conversations[::2]:
        found[f"transformers_{count}"] = _step(stage, partial(theirs, count), few, many)
    return found


def _step(stage: Stage, work: Callable[[int], object], few: int, many: int) -> float | None:
    """Milliseconds of one step of ``work(new tokens)``."""
    short, long = (stage.seconds(partial(work, new), 2) for new in (few, many))
    return round((long - short) / (many - few) * 1e3, 3) if short is not None and long is not None else None


def update(stage: Stage) -> Found:
    """Seconds of an update of groups that share prompts: the driver's ways, which must find one gradient
    norm.
    """
    groups, samples, prompt, answer, micro = stage.of((8, 8, 256, 128, 8192), (2, 2, 12, 6, 64))
    model = stage.network("0.6b")
    batch = rows(model.config.vocab_size, groups, samples, prompt, answer)
    found: Found = {"rows": len(batch), "trained": groups * samples * answer}
    norms = {}
    for name, precision, share in (
        ("shared", "highest", True),
        ("padded", "highest", False),
        ("shared_tf32", "high", True),
    ):
        stage.free()
        torch.set_float32_matmul_precision(precision)
        updater = Updater(model, Recipe(name="gpu"), lr=0.0, micro_tokens=micro, share=share)
        seconds, last = stage.seconds(partial(updater.update, batch)), updater.update(batch)
        norms[name] = last["grad_norm"]
        found[name] = {"seconds": seconds, "positions": last["tokens_computed"], "peak_gb": stage.peak_gb()}
    torch.set_float32_matmul_precision("highest")
    apart = abs(norms["shared"] / norms["padded"] - 1)
    return {**found, "grad_norms": norms, "ok": apart < 1e-2}


def sync(stage: Stage) -> Found:
    """Seconds from the trainer's weights on the device to those of an engine's process."""
    folder, model = _saved(stage)
    found: Found = {"parameters": sum(p.numel() for p in model.parameters())}
    for dtype in ("float32", "bfloat16"):
        with EngineProcess(folder, device=stage.device, dtype=dtype, slots=4, max_len=64) as engine:
            versions = iter(range(1, 9))

            def publish(engine: EngineProcess = engine, versions: Any = versions) -> None:
                with engine.weights.publish(state(model)) as handover:
                    engine.update(handover, next(versions))

            found[dtype] = stage.seconds(publish)
            found["ok"] = engine.version() == next(versions) - 1 and found.get("ok", True)
    return found


def _saved(stage: Stage) -> tuple[Path, CausalLM]:
    """A network of random weights, and its folder with the bundled policy's tokenizer, whose ids are among
    its own.
    """
    shape = SHAPES[stage.of("0.6b", "tiny")]
    wide = max(
        shape.vocab_size, json.loads((BUNDLED / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    )
    SHAPES["saved"] = replace(shape, vocab_size=wide)
    model = network("saved", stage.device)
    return save_policy(Policy(model, read_tokenizer(BUNDLED), model.config), stage.out / "random"), model


def demo(stage: Stage) -> Found:
    """``make demo`` on the device, or its beginning."""
    few = ("training.steps=2", "training.batch_size=2", "environment.val.args.limit=8")
    few = (*few, "environment.headroom_tasks=2")
    settings = [f"output={stage.out / 'runs'}", f"backend.options.device={stage.device}", *stage.of((), few)]
    line = [sys.executable, "-m", "agentlightning", "train", "--config", "examples/calc_x/cpu.yaml"]
    line += [part for setting in settings for part in ("--set", setting)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, encoding="utf-8")
    if done.returncode:
        raise RuntimeError(done.stderr[-1500:])
    last = json.loads(done.stdout.splitlines()[-1])
    kept = ("reward_before", "reward_after", "calls", "calls_exact", "logprob_gap_max")
    exact = last["calls"] == last["calls_exact"] > 0 and last["logprob_gap_max"] < 1e-3
    return {**{name: last.get(name) for name in kept}, "ok": exact}


def driver(stage: Stage) -> Found:
    """The whole loop with random weights of 0.6B: seconds of rollout, update and sync of a step."""
    from openai import AsyncOpenAI

    import agentlightning as agl

    steps, batch, group, new = stage.of((3, 16, 8, 64), (2, 2, 2, 4))
    folder, _ = _saved(stage)
    shutil.rmtree(stage.out / "runs" / "driver", ignore_errors=True)
    stage.free()

    @agl.rollout
    async def agent(task: dict[str, Any], llm: Any) -> float:
        client = AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key)
        message = {"role": "user", "content": task["question"]}
        answer = await client.chat.completions.create(model=llm.model, messages=[message], max_tokens=new)
        assert answer.choices  # what it says is noise, and so is its reward: else nothing would be trained
        return random.random()

    trainer = agl.Trainer(
        policy=str(folder),
        steps=steps,
        batch_size=batch,
        output=str(stage.out / "runs"),
        run="driver",
        concurrency=batch * group,
        algorithm=agl.GRPO(group_size=group),
        options={"device": stage.device, "dtype": "bfloat16", "max_num_seqs": batch * group, "max_len": 256}
        | {"lr": 1e-6, "save_every": 0},
    )
    trainer.fit(
        agent, [{"id": str(i), "question": f"Say something about {i}."} for i in range(steps * batch)]
    )
    lines = (stage.out / "runs" / "driver" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    taken = [one["seconds"] for one in map(json.loads, lines) if "seconds" in one]
    found: Found = {"steps": len(taken), "rollouts_a_step": batch * group, "ok": len(taken) == steps}
    if stage.card:
        found["seconds"] = {name: statistics.median(one[name] for one in taken) for name in taken[0]}
    return found


STAGES: dict[str, Callable[[Stage], Found]] = {
    stage.__name__: stage for stage in (env, parity, decode, update, sync, demo, driver)
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--device", required=True)
    parser.add_argument("--size", choices=("full", "tiny"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.device == "pretend":
        pretend.register()
    found = STAGES[given.stage](Stage(given.device, given.size, given.out))
    (given.out / f"{given.stage}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
