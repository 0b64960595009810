"""Databases to hurt, and where the second evaluator lies."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "bench" / "spider_evaluator"))


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """Four people, one nameless, one twice; a table of bytes that are no text; an empty table."""
    path = tmp_path / "people.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        """
        CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT, age INTEGER, height REAL);
        INSERT INTO person VALUES (1, 'Ann', 30, 1.5), (2, 'Bob', 25, 1.5), (3, NULL, 30, 2.0),
            (4, 'Bob', 25, 1.0);
        CREATE TABLE raw (x TEXT);
        INSERT INTO raw VALUES (CAST(x'ff61' AS TEXT)), (CAST(x'fe61' AS TEXT));
        CREATE TABLE nobody (id INTEGER, "full name" TEXT, FOREIGN KEY (id) REFERENCES person (id));
        """
    )
    connection.close()
    return path
