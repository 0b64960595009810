"""Where Ray runs: a Ray of the run's own unless an address is given, and nodes that ranks can share."""

from __future__ import annotations

import pytest

import agentlightning as agl
from agl_verl.config.options import OptionError, overrides, read_options
from agl_verl.process.cluster import ClusterError, cpus

INIT = "ray_kwargs.ray_init."


def lines(**given: object) -> dict[str, str]:
    made = overrides("/p", agl.GRPO(), 7, read_options(given), "/scratch")
    return dict(line.lstrip("+").split("=", 1) for line in made)


def test_a_ray_of_its_own_never_joins_what_happens_to_run() -> None:
    found = lines(ranks=2)
    assert found[INIT + "address"] == "local"
    assert int(found[INIT + "num_cpus"]) == cpus(2) >= 32 and found[INIT + "num_gpus"] == "2"
    assert (found["trainer.nnodes"], found["trainer.n_gpus_per_node"]) == ("1", "2")


def test_a_cluster_says_for_itself_what_it_has() -> None:
    found = lines(ranks=4, nodes=2, ray_address="10.0.0.1:6379")
    assert found[INIT + "address"] == "10.0.0.1:6379"
    assert (found["trainer.nnodes"], found["trainer.n_gpus_per_node"]) == ("2", "2")
    assert not {INIT + "num_cpus", INIT + "num_gpus", INIT + "include_dashboard"} & found.keys()


@pytest.mark.parametrize(("given", "why"), [
    ({"nodes": 2, "ranks": 2}, "with ray_address"),
    ({"nodes": 2, "ray_address": "h:1"}, "1 ranks cannot be shared"),
    ({"nodes": 0}, "cannot be shared by 0 nodes"),
    ({"nodes": 2, "ranks": 3, "ray_address": "h:1"}, "3 ranks"),
])  # fmt: skip
def test_nodes_and_ranks_that_do_not_go_together(given: dict[str, object], why: str) -> None:
    with pytest.raises(ClusterError, match=why):
        read_options(given)


@pytest.mark.parametrize("line", ["trainer.nnodes=2", "trainer.n_gpus_per_node=8", f"+{INIT}address=auto"])
def test_the_same_by_verls_own_lines_points_to_the_option(line: str) -> None:
    with pytest.raises(OptionError, match="say it with the option"):
        read_options({"overrides": [line]})
