"""What we touch of verl that only its source tells: attributes, and its vLLM and SGLang servers, whose import
needs the engines.

Each line is one class: the methods that we extend, with the parameters that we pass, and the attributes of
``self`` that we read or set.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

VLLM = "workers/rollout/vllm_rollout/vllm_async_server.py"
SGLANG = "workers/rollout/sglang_rollout/async_sglang_server.py"
SERVERS: dict[str, dict[str, tuple[str, ...]]] = {
    f"{VLLM}:vLLMReplica": {"launch_servers": (), "sleep": (), "abort_all_requests": ("reject_request",),
                            "resume_generation": (), "self.server_class": (), "self._server_handle": (),
                            "self._server_address": ()},
    f"{VLLM}:vLLMHttpServer": {"self.node_rank": (), "self._server_task": (), "self.engine": (),
                               "_preprocess_engine_kwargs": ("engine_kwargs",),
                               "abort_all_requests": ("reset_prefix_cache", "reject_request")},
    f"{SGLANG}:SGLangReplica": {"launch_servers": (), "abort_all_requests": ("reject_request",),
                                "resume_generation": (), "self.server_class": (), "self._server_handle": (),
                                "self._server_address": ()},
    f"{SGLANG}:SGLangHttpServer": {"launch_server": (), "self.node_rank": (), "self._server_task": ()},
    "workers/rollout/replica.py:RolloutReplica": {"self.config": (), "self.model_config": (),
                                                  "self.replica_rank": (), "self.servers": (),
                                                  "self._server_handle": (), "self._server_address": ()},
    "trainer/ppo/v1/trainer_base.py:PPOTrainer": {"self.config": (), "self.global_steps": (),
                                                  "self.total_training_steps": (),
                                                  "self.actor_rollout_wg": (), "self.checkpoint_manager": ()},
    "workers/engine/fsdp/transformer_impl.py:FSDPEngine": {"self.engine_config": (), "self.module": (),
                                                           "self.optimizer": (), "self.lr_scheduler": (),
                                                           "self.rank": (), "self._is_lora": ()},
}  # fmt: skip
"""``file:class`` → what it has: ``method`` with parameters, or ``self.attribute`` that it sets."""


def missing() -> list[str]:
    """What is not there in the verl that is installed."""
    spec = importlib.util.find_spec("verl")
    assert spec is not None and spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0])
    problems = []
    for path, wanted in SERVERS.items():
        file, _, name = path.partition(":")
        try:
            has = members((root / file).read_text(encoding="utf-8"), name)
        except (OSError, SyntaxError, LookupError) as error:
            problems.append(f"{path}: {type(error).__name__}: {error}")
            continue
        for member, parameters in wanted.items():
            if member not in has:
                problems.append(f"{path} has no {member}")
            else:
                problems += [f"{path}.{member} takes no {p!r}" for p in parameters if p not in has[member]]
    return problems


def members(source: str, name: str) -> dict[str, set[str]]:
    """Methods of class ``name`` with their parameters, and what is set on ``self``. LookupError: no class."""
    tree = ast.parse(source)
    found = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name), None)
    if found is None:
        raise LookupError("there is no such class")
    has: dict[str, set[str]] = {}
    for node in ast.walk(found):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            a = node.args
            has[node.name] = {arg.arg for arg in [*a.posonlyargs, *a.args, *a.kwonlyargs]}
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            has[ast.unparse(node)] = set()
    return has
