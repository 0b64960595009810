"""What holds on a device that is not the CPU, on the pretend one. ``test_device.py`` runs this file in a
process of its own: a device that is registered stays so.
"""

from __future__ import annotations

import pytest
import torch

from bench.gpu import pretend

pretend.register()


def test_it_computes_what_the_cpu_computes_and_counts() -> None:
    x, y = torch.randn(4, 5), torch.randn(5, 3)
    with pretend.counted() as counts:
        found = (x.to("pretend") @ y.to("pretend")).relu().cpu()
    assert torch.equal(found, (x @ y).relu())
    wanted = {"launches": 2, "h2d": 2, "d2h": 1, "waits": 3, "h2d_bytes": 140, "d2h_bytes": 48}
    assert {name: counts[name] for name in wanted} == wanted


def test_operands_of_two_devices_are_refused() -> None:
    there = torch.ones(3, device="pretend")
    with pytest.raises(RuntimeError, match="same device"):
        there + torch.ones(3)
    assert (there + torch.tensor(1.0)).tolist() == [2, 2, 2], "a number may come from the CPU, as on CUDA"


def test_what_makes_the_host_wait_is_counted() -> None:
    values = torch.arange(6, device="pretend")
    for wait in (
        lambda: values.sum().item(),
        lambda: values.tolist(),
        lambda: values[values > 2],
        lambda: values.nonzero(),
        lambda: values.copy_(torch.zeros(6, dtype=torch.long)),
        torch.get_device_module("pretend").synchronize,
    ):
        with pretend.counted() as counts:
            wait()
        assert counts["waits"] == 1
    with pretend.counted() as counts:
        values.copy_(torch.zeros(6, dtype=torch.long).pin_memory(), non_blocking=True)
        values.masked_fill_(values > 2, 0)
    assert counts["waits"] == 0


def test_pinned_memory_is_not_written_to_while_it_is_copied() -> None:
    memory, there = torch.ones(3).pin_memory(), torch.zeros(3, device="pretend")
    there.copy_(memory, non_blocking=True)
    memory.fill_(2)
    with pytest.raises(RuntimeError, match="before its copy had been waited for"):
        there.tolist()
    memory.fill_(1)
    assert there.tolist() == [1, 1, 1]


def test_a_graph_computes_when_it_is_replayed_and_not_before() -> None:
    module = torch.get_device_module("pretend")
    graph, given, total = (
        module.CUDAGraph(),
        torch.ones(3, device="pretend"),
        torch.zeros(3, device="pretend"),
    )
    with module.graph(graph):
        made = torch.cat((given * 2, given + 1))
        total.add_(given)
    assert made.isnan().all() and total.tolist() == [0, 0, 0]
    with pretend.counted() as counts:
        graph.replay()
    assert (counts["launches"], counts["graphs"], counts["nodes"]) == (1, 1, 4)
    assert made.tolist() == [2, 2, 2, 2, 2, 2]
    given.copy_(torch.tensor([1.0, 2, 3]))
    graph.replay()
    assert made.tolist() == [2, 4, 6, 2, 3, 4] and total.tolist() == [2, 3, 4]


@pytest.mark.parametrize("wait", ["item", "copy", "mask"])
def test_a_graph_holds_no_wait(wait: str) -> None:
    module, there = torch.get_device_module("pretend"), torch.ones(3, device="pretend")
    what = {"item": lambda: there.sum().item(), "copy": lambda: there.cpu(), "mask": lambda: there[there > 0]}
    with pytest.raises(RuntimeError, match="while a graph is captured"), module.graph(module.CUDAGraph()):
        what[wait]()
