"""The scripted engine before which gateways are tested."""

from core.gateway.conftest import engine as engine
