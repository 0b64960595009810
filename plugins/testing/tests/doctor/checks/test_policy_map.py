"""What the doctor says of the map of agents to policies."""

from __future__ import annotations

from agl_testing.doctor.checks.policy_map import judge_mapping
from agl_testing.doctor.report import Notes
from core.credit.builders import make_call, make_record

from agentlightning.train.policies import read_policies
from agentlightning.types import Record


def made(*calls: tuple[str, str]) -> list[Record]:
    """One record whose calls are (agent, policy)."""
    found = [make_call(f"c{i}", [1], [2], tags={"agent": a}, policy=p) for i, (a, p) in enumerate(calls)]
    return [make_record("r0", found)]


def test_an_entry_that_never_comes_first_is_said_with_the_one_before() -> None:
    notes = Notes()
    served = read_policies({"a": "a", "b": "b"}, {"re:.*": "a", "wolf": "b", "seer": "b"})
    judge_mapping(notes, served, made(("wolf", "a"), ("town", "a")), {})
    said = " ".join(notes.problems)
    assert "agent.policies: 're:.*' stands before 'wolf' and takes all of its calls" in said
    assert "agent.policies: 'seer' matched no call of the probe" in said
    assert "policy 'b' got no call in the probe" in said


def test_a_map_whose_entries_all_count_is_well() -> None:
    notes = Notes()
    served = read_policies({"a": "a", "b": "b"}, {"wolf": "b", "re:.*": "a"})
    judge_mapping(notes, served, made(("wolf", "b"), ("town", "a")), {})
    assert not notes.problems
