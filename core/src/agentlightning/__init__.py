"""Agent Lightning: train agents that are already written.

``import agentlightning as agl`` loads nothing: each public name is imported from its home the first time it
is used (PEP 562). ``_PUBLIC`` is the one list of core's public names; the imports under ``TYPE_CHECKING``
repeat it for type checkers, and a test keeps the two equal. Plugins have further names (``agl_names``).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from agentlightning._lazy import PluginModules as _PluginModules, lazy_names as _lazy_names
from agentlightning._version import __version__ as __version__

if TYPE_CHECKING:
    from agentlightning.algorithms.evaluations import Baseline as Baseline
    from agentlightning.capture.context import (
        current_attempt as current_attempt,
        current_task as current_task,
        tagged as tagged,
    )
    from agentlightning.capture.emit import (
        emit_annotation as emit_annotation,
        emit_object as emit_object,
        emit_reward as emit_reward,
        find_final_reward as find_final_reward,
        find_reward_spans as find_reward_spans,
        get_reward_value as get_reward_value,
    )
    from agentlightning.decorator import agent as agent
    from agentlightning.decorator.agents import rollout as rollout
    from agentlightning.hookspecs import hookimpl as hookimpl, hookspec as hookspec
    from agentlightning.plugins.manager import PluginError as PluginError, Plugins as Plugins
    from agentlightning.plugins.stores import open_store as open_store
    from agentlightning.recipes import (
        CISPO as CISPO,
        DAPO as DAPO,
        GRPO as GRPO,
        GSPO as GSPO,
        RLOO as RLOO,
        DrGRPO as DrGRPO,
        FlowGRPO as FlowGRPO,
        GiGPO as GiGPO,
        REINFORCEPlusPlus as REINFORCEPlusPlus,
    )
    from agentlightning.train.trainer import Trainer as Trainer
    from agentlightning.types import *  # noqa: F403
    from agentlightning.types.work import PolicyFolder as PolicyFolder

# module → its public names
_PUBLIC = {
    "algorithms.evaluations": "Baseline",
    "decorator.agents": "rollout",
    "capture.context": "current_attempt current_task tagged",
    "capture.emit": """
        emit_annotation emit_object emit_reward find_final_reward
        find_reward_spans get_reward_value
    """,
    "hookspecs": "hookimpl hookspec",
    "decorator": "agent",
    "plugins.manager": "PluginError Plugins",
    "recipes": "CISPO DAPO GRPO GSPO RLOO DrGRPO FlowGRPO GiGPO REINFORCEPlusPlus",
    "plugins.stores": "open_store",
    "train.trainer": "Trainer",
    "types": """
        Attempt AttemptStatus AttemptedRollout AuditLink Batch Call Correction EarlierAttempt Evaluation
        Grammar JsonResource LLM Ledger LossAggregation Mode Model Progress PromptTemplate
        ProxyLLM Recipe Record Resource Resources Reward Rollout RolloutConfig
        RolloutFingerprint RolloutStatus Row Segment Span StepReport Tags UsageError Worker
        merge_tags new_id
    """,
    "types.work": "PolicyFolder",
}


_HOMES = {name: module for module, names in _PUBLIC.items() for name in names.split()}
"""Public name → its module."""
__all__ = ["__version__", *sorted(_HOMES)]


__getattr__ = _lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


if _PluginModules not in sys.meta_path:
    sys.meta_path.append(_PluginModules)
