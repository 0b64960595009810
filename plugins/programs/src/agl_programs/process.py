"""Starts a process of a program in its environment and waits for it; terminates it when its time is up.

The process shares the standard streams and the process group of ``agl run``, so input and Ctrl-C reach it as
if the user had started it. Invariants: when :func:`run_process` returns, the process has ended; of the run's
secrets, the program gets only the attempt's key; other variables are as in the environment of ``agl run``,
but for proxies with a password.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentlightning.decorator.reward_function import BadReward
from agentlightning.keys import CONTEXT_KEY
from agentlightning.plugins.manager import Plugins
from agentlightning.proxies import PROXIES, direct_variables
from agentlightning.redaction import HIDDEN, SECRET_NAME, redacted
from agl_cluster.process_tree import descendants, kill_all, kill_group, kill_tree
from agl_programs.events import event_variables
from agl_programs.inside.import_hook import watched_root
from agl_programs.inside.settings import ChildSettings
from agl_programs.inside.start import SDKS

BOOTSTRAP = Path(__file__).parent / "inside" / "bootstrap"
TERMINATE_SECONDS = 0.6
"""Seconds between SIGTERM and SIGKILL."""
NOT_EXECUTED = 126
"""Exit status for a file that the system refuses to execute."""
SWITCHES = {
    "SEMANTICKERNEL_EXPERIMENTAL_GENAI_ENABLE_OTEL_DIAGNOSTICS": "true",
    "SEMANTICKERNEL_EXPERIMENTAL_GENAI_ENABLE_OTEL_DIAGNOSTICS_SENSITIVE": "true",
}
"""Variables by which a framework makes spans with its agents' names and its tools' arguments and results."""
REWARD_FILE_BYTES = 4096
"""Bytes that are read of a reward file."""
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals after which no further process is started."""
USUAL = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "TMPDIR",
    "PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "VIRTUAL_ENV",
    "CONDA_PREFIX", "NODE_PATH", "NODE_EXTRA_CA_CERTS", "NVM_DIR", "LD_LIBRARY_PATH", "JAVA_HOME", "GOPATH",
    "CARGO_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "no_proxy", "NO_PROXY", *PROXIES,
)  # fmt: skip
"""Variables that a command gets without being asked for; none of them usually holds a secret."""
_SHORTEST = 8
"""Characters of a value that is looked for in text; a shorter one would hide ordinary words."""


def environment(
    base: Mapping[str, str], settings: ChildSettings, watched: Sequence[str], api_key_env: str | None = None
) -> dict[str, str]:
    """Return the program's environment: ``base`` (of :mod:`agentlightning.child_environment`) and its
    settings. ``watched``: packages whose import begins capture. ``api_key_env``: the variable of the engine's
    key; the program finds the attempt's key there.

    If the user has set one of Anthropic's variables, both stay: they are for another engine. So do those of
    :data:`SWITCHES`.
    """
    found = dict(base)
    # An entry's attempt has a key of its own, with which the wire layer replaces this one.
    key = CONTEXT_KEY if settings.per_entry else settings.key
    found |= {
        "OPENAI_BASE_URL": settings.gateway,
        "OPENAI_API_BASE": settings.gateway,
        "OPENAI_API_KEY": key,
    }
    if not (base.get("ANTHROPIC_BASE_URL") or base.get("ANTHROPIC_API_KEY")):
        found |= {"ANTHROPIC_BASE_URL": settings.gateway.removesuffix("/v1"), "ANTHROPIC_API_KEY": key}
    if base.get("AZURE_OPENAI_ENDPOINT"):
        root = settings.gateway.removesuffix("/v1")
        found |= {"AZURE_OPENAI_ENDPOINT": root, "AZURE_OPENAI_API_KEY": key}
    if not any(name in base for name in SWITCHES):
        found |= SWITCHES
    if api_key_env is not None:
        found[api_key_env] = key
    if not settings.per_entry:  # an event is of the attempt whose URL it is posted to
        found |= event_variables(settings)
    found |= direct_variables(base, settings.gateway, settings.store)
    found |= settings.variables(list(watched))
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(BOOTSTRAP), base.get("PYTHONPATH")]))
    return found


def without_values(text: str, variables: Mapping[str, str]) -> str:
    """Return a text without the values of secret variables: those whose name says key, token, secret,
    password or credential, of at least eight characters, and URLs with a password.
    """
    secrets = {
        value
        for name, value in variables.items()
        if len(value) >= _SHORTEST and (SECRET_NAME.search(name) or redacted(value) != value)
    }
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return redacted(text)


class ProgramFailed(Exception):
    """The program ended with an exit status other than 0, or by a signal."""


@dataclass(slots=True)
class Processes:
    """The running processes, to which signals are forwarded."""

    running: set[asyncio.subprocess.Process] = field(default_factory=set)
    ending_signal: int | None = None
    """The signal that has ended the run."""

    def on_signal(self, number: int, *, forward: bool = True) -> None:
        """Note a signal that ends the run. Send it to every process if ``forward``."""
        if number in ENDING_SIGNALS:
            self.ending_signal = number
        for process in self.running if forward else ():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                process.send_signal(number)


async def run_process(command: Sequence[str], variables: Mapping[str, str], processes: Processes) -> int:
    """Run a command to its end and return its exit status, negative for the signal that killed it.
    Cancellation terminates the process and all its descendants.
    """
    process = await asyncio.create_subprocess_exec(*command, env=dict(variables))
    processes.running.add(process)
    if processes.ending_signal is not None:  # it arrived while the process was started
        processes.on_signal(processes.ending_signal)
    try:
        return await process.wait()
    except asyncio.CancelledError:
        await terminate(process)
        raise
    finally:
        processes.running.discard(process)


async def terminate(process: asyncio.subprocess.Process, *, group: bool = False) -> None:
    """Terminate a process, then kill it and all its descendants. ``group``: it leads a process group, which
    is terminated with it.
    """
    below = descendants(process.pid)  # now: once the process has ended, they have another parent
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(process.pid, signal.SIGTERM)
        else:
            process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), TERMINATE_SECONDS)
    except TimeoutError:
        kill_tree(process.pid)
        await process.wait()
    if group:
        kill_group(process.pid)
    kill_all(below)


def exit_status(code: int) -> int:
    """Return the exit status that a shell reports."""
    return 128 - code if code < 0 else code


class RewardFile:
    """A file into which a program may write its reward, one number as text. Make the object before the
    program starts: a file that the program does not touch holds no reward.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._before = self._stamp()
        except OSError as error:
            raise BadReward(f"{path} cannot be read: {error}") from None

    def read(self) -> float | None:
        """Return the number, or ``None`` if the file was not written. Raise :class:`BadReward` otherwise."""
        try:
            if self._stamp() in (None, self._before):
                return None
            text = self._text()
            value = float(text)
        except (OSError, UnicodeDecodeError) as error:
            raise BadReward(f"{self.path} cannot be read: {error}") from None
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise BadReward(f"{self.path} holds {text[:60]!r}, not a finite number")
        return value

    def _text(self) -> str:
        if not self.path.is_file():  # reading a pipe would block
            raise OSError("it is no file")
        with self.path.open("rb") as file:
            return file.read(REWARD_FILE_BYTES).decode().strip()

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def watched_packages(plugins: Plugins) -> list[str]:
    """Return the packages whose import begins capture in a program: Agent Lightning, the SDKs, and the
    frameworks with an adapter here. Adapters that only the program's environment has are found when the
    program imports an SDK.
    """
    roots = {watched_root(spec.framework) for spec in plugins.adapters.values()}
    return sorted({"agentlightning", *SDKS, *roots})
