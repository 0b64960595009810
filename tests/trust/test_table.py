"""The table of SECURITY.md, which `make trust` compares with what an attacker reached."""

from __future__ import annotations

from trust.attacks import REACHES
from trust.run import KINDS, OWN, ROOT, documented


def test_every_reach_has_a_row_and_every_kind_a_column() -> None:
    table = documented((ROOT / "SECURITY.md").read_text())
    assert table.keys() == {*REACHES, *OWN}
    assert all(row.keys() == {*KINDS} for row in table.values())


def test_a_cell_is_open_if_it_says_so() -> None:
    head = "| what | a | b | c | d | e |\n|---|---|---|---|---|---|\n"
    text = f"{head}| a thing (`store`) | open: x | – |  | open | – |\n| other | a |"
    cells = {"inline": True, "process": False, "command": False, "job": True, "job-command": False}
    assert documented(text) == {"store": cells}
