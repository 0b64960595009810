"""A policy on disk and in memory, its checkpoints and export."""

from agl_local.policy.folder import DTYPES, Policy, StateError, init_model, load_policy, save_policy

__all__ = ["DTYPES", "Policy", "StateError", "init_model", "load_policy", "save_policy"]
