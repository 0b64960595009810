"""Reports of workers to their supervisor."""

from __future__ import annotations

from multiprocessing import Pipe

import msgspec

from agl_cluster.runners.service import RunnerState
from agl_cluster.runners.supervisor import send_report


def test_a_supervisor_that_reads_nothing_stops_no_worker() -> None:
    ours, theirs = Pipe()
    number = 20_000
    for running in range(number):
        send_report(theirs, RunnerState({"succeeded": running}, running))
    theirs.close()
    found = []
    while ours.poll():
        try:
            found.append(msgspec.json.decode(ours.recv_bytes(), type=RunnerState).running)
        except EOFError:
            break
    assert 10 < len(found) < number and found == list(range(len(found)))
