"""The machine: interpreter, cores, memory, disk, open files, clock, loopback, temporary folder, devices."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import tempfile
import time
from pathlib import Path

import psutil

from agentlightning.plugins.manager import Plugins, load as load_plugins
from agentlightning.plugins.suite import install_line
from agentlightning.terminal import plural
from agentlightning.types import UsageError
from agentlightning.webserver.loopback import loopback
from agl_testing.doctor.figures import format_bytes
from agl_testing.doctor.findings import Findings
from agl_testing.doctor.report import Check, Notes

LEAST_DISK = 2e9
LEAST_MEMORY = 1e9
LEAST_FILES = 1024
EPOCH = 1735689600.0
"""A clock before 2025 is wrong: leases, keys and run names depend on it."""


async def check_environment(findings: Findings) -> Check:
    """Check that the machine can run anything at all."""
    notes = Notes()
    python = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    cores = usable_cores()
    memory = available_memory()
    _memory(notes, memory)
    _load(notes, load_average(), cores)
    _disk(notes, Path.cwd())
    _temporary(notes)
    _files(notes)
    _clock(notes, time.time())
    _loopback(notes)
    findings.plugins = load_plugins()
    _devices(notes, findings.plugins)
    title = f"{python}, {plural(cores, 'core')}, {format_bytes(memory)} of memory free"
    return notes.check("environment", title, cores=cores, memory=memory, python=platform.python_version())


def usable_cores() -> int:
    """Return the number of cores available to this process."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def available_memory() -> int:
    """Return the available memory in bytes, without swap."""
    return int(psutil.virtual_memory().available)


def load_average() -> float:
    """Return the load average of the last minute."""
    return psutil.getloadavg()[0]


def nearest_existing(folder: Path) -> Path:
    """Return ``folder``, or its nearest existing parent."""
    return next(p for p in (folder, *folder.parents) if p.is_dir())


def _memory(notes: Notes, free: int) -> None:
    if free < LEAST_MEMORY:
        notes.warn(
            f"only {format_bytes(free)} of memory free", "Close something, or train on another machine."
        )


def _load(notes: Notes, load: float, cores: int) -> None:
    if load > 1.5 * cores:
        notes.warn(
            f"this machine is busy: load {load:.1f} on {plural(cores, 'core')}",
            "Timings and the forecast will look too slow; look again when it is idle.",
        )


def _disk(notes: Notes, folder: Path) -> None:
    free = shutil.disk_usage(nearest_existing(folder)).free
    notes.fact(f"{format_bytes(free)} free on the disk of {folder}")
    if free < LEAST_DISK:
        notes.warn(
            f"only {format_bytes(free)} free on the disk of {folder}", "Free some, or set `output` elsewhere."
        )


def _temporary(notes: Notes) -> None:
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"agl")
    except OSError as error:
        notes.fail(f"the temporary folder cannot be written: {error}", "Set TMPDIR to a folder that can.")


def _files(notes: Notes) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < LEAST_FILES:
        notes.warn(
            f"a process may open only {soft} files",
            f"Say `ulimit -n {4 * LEAST_FILES}`: each call needs two.",
        )
    else:
        notes.fact(f"open files: {'unlimited' if soft == resource.RLIM_INFINITY else soft}")


def _clock(notes: Notes, now: float) -> None:
    if now < EPOCH:
        shown = time.strftime("%Y-%m-%d", time.gmtime(now))
        notes.fail(f"the clock says {shown}", "Set it: leases, keys and the names of runs depend on it.")


def _loopback(notes: Notes) -> None:
    """Check that a server on loopback can be reached; all parts of a run talk over it."""
    host = loopback()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with (
            socket.create_server((host, 0), family=family) as server,
            socket.create_connection(server.getsockname(), timeout=5),
        ):
            server.accept()[0].close()
    except OSError as error:
        notes.fail(
            f"{host} cannot be reached: {error}",
            "Gateway and engine talk over loopback; allow it in the sandbox or firewall.",
        )


def _devices(notes: Notes, plugins: Plugins) -> None:
    """Report the hardware and libraries of each driver."""
    for name, spec in sorted(plugins.drivers.items()):
        if spec.environment_info is None:
            continue
        try:
            facts = spec.environment_info({})
        except (UsageError, ImportError, RuntimeError) as error:
            notes.warn(f"driver {name}: {error}", f"Mend the installation of driver {name!r}.")
            continue
        notes.fact(f"driver {name}: " + ", ".join(f"{key} {value}" for key, value in facts.items()))
    if not plugins.drivers:
        line = install_line("driver", "local")
        notes.warn("no driver is installed", f"Install one; in a checkout: `{line}`.")
