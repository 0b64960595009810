"""Parts of verl that this driver does not compose with, each with the reason."""

from __future__ import annotations

PARTS = ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic")

ENGINE = (
    "the driver trains with FSDP 2: its LoRA, checkpoints and exports read the weights as FSDP 2 shards "
    "them, and Megatron, VeOmni and TorchTitan shard them otherwise; a large model takes more ranks, or lora"
)
REPLAY = (
    "router replay (R2, R3) trains each token with the experts that were chosen for it before, for which "
    "recorded calls and rows have no place; recipe.correction weighs tokens whose probabilities differ"
)
REFUSED = {
    "model_engine": ENGINE,
    **{
        f"{part}.{name}": ENGINE
        for part in PARTS
        for name in ("strategy", "megatron", "veomni", "torchtitan")
    },
    **{f"{part}.router_replay": REPLAY for part in PARTS},
    "actor_rollout_ref.rollout.enable_rollout_routing_replay": REPLAY,
}
"""Lines of verl's configuration for other engines and for router replay."""
NOTHING = {
    "model_engine": frozenset({"dp"}),
    **{f"{part}.strategy": frozenset({"fsdp2"}) for part in PARTS},
    **{f"{part}.router_replay": frozenset({"disabled"}) for part in PARTS},
    "actor_rollout_ref.rollout.enable_rollout_routing_replay": frozenset({"false"}),
}
"""Of these keys the values that ask for nothing else than the driver does."""
