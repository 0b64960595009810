"""The gateway's scene: a scripted engine, a store double, and a started gateway."""

from core.gateway.conftest import (
    engine as engine,
    keep_alive as keep_alive,
    store as store,
    world as world,
)
