"""The guards every other test relies on."""

from __future__ import annotations

import os
import socket

import pytest


@pytest.mark.parametrize("method", ["connect", "connect_ex"])
def test_a_connection_beyond_loopback_is_refused(method: str) -> None:
    with socket.socket() as outside, pytest.raises(RuntimeError, match=r"may not connect to 192\.0\.2\.1:80"):
        getattr(outside, method)(("192.0.2.1", 80))


def test_a_name_look_up_is_refused() -> None:
    with pytest.raises(RuntimeError, match="may not look up"):
        socket.create_connection(("example.invalid", 80))


def test_loopback_is_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("localhost", port)) as client:
            assert client.getpeername() == ("127.0.0.1", port)


async def test_asyncio_is_guarded_too() -> None:
    import asyncio

    with pytest.raises(RuntimeError, match="may not connect"):
        await asyncio.open_connection("192.0.2.1", 80)


def test_the_shells_settings_are_gone() -> None:
    assert [n for n in os.environ if n.startswith(("AGL_", "OPENAI_", "OTEL_"))] == ["AGL_PLUGINS"]
    assert os.environ["AGL_PLUGINS"] == ""


@pytest.mark.plugins
def test_a_marked_test_sees_installed_plugins() -> None:
    assert "AGL_PLUGINS" not in os.environ
