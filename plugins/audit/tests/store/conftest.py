"""Stores for tests: in a file of their own, under a clock that moves when told."""

from core.store.conftest import clock as clock, sqlite as sqlite
