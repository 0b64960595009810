"""The gateway's scene: a scripted engine, a store double, and a started gateway."""

from core.gateway.conftest import engine as engine, store as store, world as world
