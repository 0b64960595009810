"""Which engine serves the policy, and how verl is told so.

``embedded`` is agl-local's, in a Ray actor (``inside/serving/replica.py``), on a CPU or a GPU. ``vllm`` and
``sglang`` are verl's own servers, one for each ``tensor_parallel`` ranks (``inside/serving/servers.py``). All
speak the OpenAI API, and the gateway keeps the calls of an attempt at one of them. verl lets its servers
listen at the node's address: vLLM's ask for a key that only the gateway has, SGLang's cannot (verl sends
their weights over HTTP).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from agentlightning.types import UsageError
from agentlightning.types.base import LogprobsMode
from agl_verl.config.modes import ROLLOUT
from agl_verl.config.quote import quote
from agl_verl.config.settings import MEMORY, Engine

if TYPE_CHECKING:
    from agl_verl.config.settings import Options

PARSERS = {"vllm": "hermes", "sglang": "qwen"}
"""What each calls the parser of the ``<tool_call>`` that Qwen's models write."""
LOGPROBS_MODES: dict[Engine, LogprobsMode | None] = {
    "embedded": "processed",
    "vllm": "processed",
    "sglang": None,
}
"""What each one's logprobs are of. SGLang's are not known to show every constraint."""


class EngineError(UsageError, ValueError):
    """Engines that cannot be as the options say."""


def check(o: Options) -> None:
    """Raises EngineError for what cannot be used."""
    if o.engines < 1 or o.tensor_parallel < 1 or not 0 < o.engine_memory < 1:
        raise EngineError(
            "backend.options: engines and tensor_parallel must be 1 or more, engine_memory above 0 and below "
            "1"
        )
    if o.in_flight == "keep" and (o.engine, o.mode) != ("vllm", "separate_async"):
        raise EngineError(
            "backend.options.in_flight: keep is for engine: vllm in mode separate_async. The embedded engine "
            "always keeps its calls, SGLang never, and in the other modes vLLM sleeps while verl trains"
        )
    if o.engine == "embedded":
        given = {
            "tensor_parallel": o.tensor_parallel > 1,
            "tool_parser": o.tool_parser is not None,
            "engine_memory": o.engine_memory != MEMORY,
        }
        for name in [name for name, there in given.items() if there]:
            raise EngineError(
                f"backend.options.{name}: the embedded engine has no such thing; it is for vllm, sglang"
            )
        if o.engines > o.ranks:
            raise EngineError(
                f"backend.options.engines: {o.engines} engines want as many ranks, there are {o.ranks}: each "
                "gets its weights from the rank of its number"
            )
        return
    if o.device != "cuda":
        raise EngineError(
            f"backend.options.engine: verl's {o.engine} servers are for GPUs (device: cuda); on a CPU there "
            "is engine: embedded"
        )
    if o.engine_threads is not None:
        raise EngineError(
            f"backend.options.engine_threads: verl's {o.engine} servers have no such thing; it is for "
            "embedded"
        )
    if o.engines > 1:
        raise EngineError(
            f"backend.options.engines: verl launches a {o.engine} server for each tensor_parallel ranks; say "
            "how many by these two"
        )
    if o.mode != "separate_async" and (o.ranks // max(1, o.nodes)) % o.tensor_parallel:
        raise EngineError(
            f"backend.options.tensor_parallel: a node's {o.ranks // o.nodes} ranks cannot be shared by "
            f"servers of {o.tensor_parallel}"
        )


def lines(o: Options, name: str) -> list[str]:
    """For verl's configuration; agents' calls ask for the model ``name``."""
    own = f"+{ROLLOUT}.engine_kwargs.{o.engine}"
    made = [f"{ROLLOUT}.name={o.engine}", f"{ROLLOUT}.tensor_model_parallel_size={o.tensor_parallel}"]
    if o.engine == "embedded":
        made += [
            f"{ROLLOUT}.free_cache_engine=False",
            f"{own}.slots={o.max_num_seqs}",
            f"{own}.max_len={o.max_len}",
            f"{own}.device={o.device}",
            f"{own}.engines={o.engines}",
        ]
        return made if o.engine_threads is None else [*made, f"{own}.threads={o.engine_threads}"]
    if o.in_flight == "keep":
        made.append(f"{own}.in_flight=keep")
    return [
        *made,
        f"{ROLLOUT}.free_cache_engine=True",
        f"{ROLLOUT}.gpu_memory_utilization={o.engine_memory}",
        f"{ROLLOUT}.max_model_len={o.max_len}",
        f"{ROLLOUT}.max_num_seqs={o.max_num_seqs}",
        # What is trained is what tokens were drawn from: logprobs after temperature, and no defaults of the
        # model's folder.
        f"{ROLLOUT}.logprobs_mode=processed_logprobs",
        f"{ROLLOUT}.top_p=1.0",
        f"{ROLLOUT}.top_k=-1",
        f"{own}.served_model_name={quote(name)}",
        f"{own}.tool_call_parser={quote(o.tool_parser or PARSERS[o.engine])}",
        f"{own}.enable_auto_tool_choice=True" if o.engine == "vllm" else f"{own}.sampling_defaults=openai",
    ]


REFUSED = {
    f"{ROLLOUT}.name": "say it with the option engine",
    f"{ROLLOUT}.mode": "agents call the engine over HTTP: verl's servers",
    f"{ROLLOUT}.tensor_model_parallel_size": "say it with the option tensor_parallel",
    f"{ROLLOUT}.logprobs_mode": "logprobs must be those of what was drawn",
    f"{ROLLOUT}.disaggregation": "a server that only prefills answers no agent",
}
"""Lines of verl's configuration that are options of ours, or would make answers that cannot be trained."""


def key_of(secret: str) -> str:
    """What servers of vLLM and embedded engines are asked with; driver and child make it from the channel's
    ``secret``.
    """
    return hashlib.sha256(f"engines of {secret}".encode()).hexdigest()
