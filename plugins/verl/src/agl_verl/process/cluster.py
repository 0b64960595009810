"""Where verl's Ray runs: a Ray of our own on this machine, or a cluster that stands already.

Ray takes whatever cluster was last started on a machine for the one that is meant; so it is always said.
Without an address the child starts a Ray of its own, which ends with it. With one it joins, as one job: at
its end its own actors end, and the cluster stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentlightning.types import UsageError

if TYPE_CHECKING:
    from agl_verl.config.settings import Options


class ClusterError(UsageError, ValueError):
    """Nodes and ranks that do not go together."""


def check(o: Options) -> None:
    """Raises ClusterError for what cannot be used."""
    if o.nodes < 1 or o.ranks % max(1, o.nodes):
        raise ClusterError(
            f"backend.options: {o.ranks} ranks cannot be shared by {o.nodes} nodes; ranks counts the "
            "training workers of all nodes together"
        )
    if o.nodes > 1 and o.ray_address is None:
        raise ClusterError(
            f"backend.options.nodes: {o.nodes} nodes are a Ray cluster: start one (`ray start`), and say "
            "where it is with ray_address: HOST:PORT"
        )


def cpus(ranks: int) -> int:
    """Logical CPUs that Ray wants for ``ranks`` workers: with too few it waits without a word."""
    return 16 + 8 * ranks


def lines(o: Options) -> list[str]:
    """Its lines of verl's configuration."""
    init = "ray_kwargs.ray_init"
    shared = [f"trainer.nnodes={o.nodes}", f"trainer.n_gpus_per_node={o.ranks // o.nodes}"]
    if o.ray_address is not None:  # its resources are its own to say
        return [*shared, f"+{init}.address={o.ray_address}"]
    gpus = [f"+{init}.num_gpus={o.ranks}"] if o.device == "cpu" else []
    return [*shared, f"+{init}.address=local", f"+{init}.include_dashboard=False",
            f"{init}.num_cpus={cpus(o.ranks)}", *gpus]  # fmt: skip


REFUSED = {
    "trainer.nnodes": "say it with the option nodes",
    "trainer.n_gpus_per_node": "say it with the option ranks, which counts those of all nodes",
    "ray_kwargs.ray_init.address": "say it with the option ray_address",
}
"""Lines of verl's configuration that are options of ours."""
