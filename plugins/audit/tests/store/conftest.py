"""Stores for tests: in a file of their own, under a clock that moves when told; and one that is served."""

from plugins.cluster.tests.store.conftest import (
    client as client,
    clock as clock,
    served as served,
    sqlite as sqlite,
)
