"""Addresses of this machine, and tokens that can be guessed."""

import socket

import pytest

from agentlightning.webserver import loopback
from agentlightning.webserver.loopback import (
    ExposedServer,
    check_interface,
    check_token,
    host_of,
    is_loopback,
    token_from_env,
)


@pytest.mark.parametrize(
    ("authority", "local"),
    [
        ("localhost", True),
        ("LOCALHOST:80", True),
        ("localhost.:80", True),
        ("127.0.0.1:1", True),
        ("127.3.2.1", True),
        ("[::1]:80", True),
        ("", False),
        (":80", False),
        ("localhost.evil.example", False),
        ("evil.example:127", False),
        ("localhost@evil.example", False),
        ("[::2]:80", False),
        ("0.0.0.0:80", False),
        ("127.0.0.1.nip.io", False),
    ],
)
def test_names_of_this_machine(authority: str, local: bool) -> None:
    assert is_loopback(host_of(authority)) is local


@pytest.mark.parametrize(
    "token", ["", "   ", "two\nlines of a token", " spaces at its ends ", "tökens are ASCII"]
)
def test_tokens_that_are_none(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExposedServer, match="AGL_TOKEN"):
        check_token(token, "AGL_TOKEN")
    monkeypatch.setenv("AGL_TOKEN", token)
    with pytest.raises(ExposedServer, match="AGL_TOKEN"):
        token_from_env("AGL_TOKEN")


def test_a_short_token_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert check_token("s3cret", "AGL_TOKEN") == "s3cret"
    assert "AGL_TOKEN has 6 characters" in caplog.text and "s3cret" not in caplog.text
    caplog.clear()
    assert check_token("0123456789abcdef", "AGL_TOKEN") == "0123456789abcdef"
    assert check_token(None, "AGL_TOKEN") is None and token_from_env("AGL_TOKEN") is None
    assert not caplog.text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.5", "example.org"])
def test_other_interfaces_want_a_secret(host: str) -> None:
    with pytest.raises(ExposedServer, match=r"without a token.*Set AGL_X"):
        check_interface("a server", host, guarded=False, variable="AGL_X")
    check_interface("a server", host, guarded=True, variable="AGL_X")
    check_interface("a server", "127.0.0.1", guarded=False, variable="AGL_X")


def test_loopback_is_the_one_that_this_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[str] = []

    def only_six(address: tuple[str, int], **how: int) -> socket.socket:
        bound.append(address[0])
        if address[0] == "127.0.0.1":
            raise OSError(99, "Cannot assign requested address")
        return socket.socket()

    with monkeypatch.context() as patch:
        patch.setattr(loopback.socket, "create_server", only_six)
        loopback.loopback.cache_clear()
        found = loopback.loopback(), loopback.interface("127.0.0.1"), loopback.interface("10.0.0.5")
    loopback.loopback.cache_clear()
    assert found == ("::1", "::1", "10.0.0.5") and bound == ["127.0.0.1", "::1"]
