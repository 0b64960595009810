"""What holds for every test: no network but loopback, no settings of the developer's shell, fixed seeds.

Core's tests load no plugin. The others load those of ``BATTERIES`` (``tests/marks.py``) that are installed. A
test that is marked ``plugins`` loads all that are installed, as a user's program does.
"""

from __future__ import annotations

import gc
import ipaddress
import os
import random
import shutil
import signal
import socket
import sys
import weakref
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import certifi
import pytest
from hypothesis import settings
from marks import THOROUGH, loaded_plugins

from agentlightning import log_limit

# A slow machine is no fault of what is tested: no deadlines. `make test-slow` asks for the thorough profile.
settings.register_profile("thorough", deadline=None, max_examples=THOROUGH)
settings.register_profile("suite", deadline=None, max_examples=THOROUGH // 10)
settings.load_profile("suite")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by torch when it is first imported; tests are tiny
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job; children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()  # until all is imported
MEMORY = Path("/dev/shm")
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2 << 30:  # thousands of small databases
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
PREFIXES = ("AGL_", "OPENAI_", "OTEL_", "SSL_CERT_")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


_sessions: weakref.WeakSet[aiohttp.ClientSession] = weakref.WeakSet()


def _keep_sessions(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: aiohttp.ClientSession, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _sessions.add(self)

    return __init__


aiohttp.ClientSession.__init__ = _keep_sessions(aiohttp.ClientSession.__init__)  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail a test that leaves a client session open on an event loop that has ended. aiohttp warns of it once
    the session is collected: in another test, or never.
    """
    yield
    left = [one for one in _sessions if not one.closed and one._loop.is_closed()]
    _sessions.difference_update(left)
    assert not left, f"{len(left)} client sessions were left open: close them, or the client that made them"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="N/OF", help="run the tests of one part of OF, chosen by their names")


@pytest.hookimpl(trylast=True)  # what -m leaves
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests of ``--part``: each is in one part, the same in every process."""
    if (part := config.getoption("part")) is not None:
        number, of = map(int, part.split("/"))
        kept: list[pytest.Item] = []
        others: list[pytest.Item] = []
        for item in items:
            (kept if zlib.crc32(item.nodeid.encode()) % of == number - 1 else others).append(item)
        config.hook.pytest_deselected(items=others)
        items[:] = kept


def pytest_collection_finish() -> None:
    """Spare the garbage collector what was imported: it would look at a million objects again and again."""
    gc.enable()
    gc.freeze()


class NetworkRefused(RuntimeError):
    """A test tried to leave the loopback interface. Not an OSError: retry loops must not swallow it."""


def is_local(host: object) -> bool:
    """Whether an address's host is this machine's loopback interface."""
    if host in (None, "", "localhost", b"localhost"):
        return True
    name = host.decode() if isinstance(host, bytes) else str(host)
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _guard_connect(original: Callable[..., Any]) -> Callable[..., Any]:
    def connect(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not is_local(address[0]):
            raise NetworkRefused(
                f"a test may not connect to {address[0]}:{address[1]}; use a server on 127.0.0.1"
            )
        return original(self, address)

    return connect


def _guard_lookup(original: Callable[..., Any]) -> Callable[..., Any]:
    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_local(host) and host not in ("0.0.0.0", "::"):
            raise NetworkRefused(f"a test may not look up {host!r}; use a server on 127.0.0.1")
        return original(host, *args, **kwargs)

    return getaddrinfo


@pytest.fixture(autouse=True, scope="session")
def loopback_only() -> Iterator[None]:
    """Refuse connections and name look-ups beyond loopback, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", _guard_connect(socket.socket.connect))
        patch.setattr(socket.socket, "connect_ex", _guard_connect(socket.socket.connect_ex))
        patch.setattr(socket, "getaddrinfo", _guard_lookup(socket.getaddrinfo))
        yield


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with one certificate, for tests to trust. All is loopback and meets none; to read those that the
    machine trusts takes 50 ms of each HTTP client and 150 ms of each process.
    """
    text, end = certifi.contents(), "-----END CERTIFICATE-----\n"
    path: Path = tmp_path_factory.mktemp("certificate") / "one.pem"
    path.write_text(text[text.index("-----BEGIN") : text.index(end)] + end)
    return path


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Load no installed plugin unless asked. Fixtures that several tests share are made after this."""
    if item.get_closest_marker("plugins") is None:
        os.environ["AGL_PLUGINS"] = loaded_plugins(item.path)
    else:
        os.environ.pop("AGL_PLUGINS", None)
    plugins = sys.modules.get("agentlightning.plugins.manager")
    if plugins is not None:
        plugins.load.cache_clear()


@pytest.fixture(autouse=True)
def clean_environment(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    certificate: Path,
) -> None:
    """Remove the shell's settings, keep the home folder untouched."""
    for name in list(os.environ):
        if (name.startswith(PREFIXES) and name != "AGL_PLUGINS") or name.lower() in PROXIES:
            monkeypatch.delenv(name)
    home: Path = tmp_path_factory.getbasetemp() / "home"
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))


@pytest.fixture(autouse=True)
def as_if_nothing_ran_before() -> None:
    """Log a fault that an earlier test has logged, and draw the same random numbers."""
    log_limit.LIMIT.forget()
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
