"""The limits of a sandbox, as fields of a run's description."""

from __future__ import annotations

from typing import Literal

from pydantic import ByteSize, Field

from agentlightning.types.sections import Names, Section


class SandboxSection(Section):
    """The kernel's isolation around a command: by bubblewrap, or in a container of an image."""

    memory: ByteSize = Field(default=ByteSize(1 << 30), ge=16 << 20)
    """Bytes of memory of all its processes together, e.g. ``512MB``. A command's ``/tmp`` comes on top."""
    processes: int = Field(default=128, ge=1)
    """Processes and threads at a time."""
    disk: ByteSize = Field(default=ByteSize(256 << 20), ge=1 << 20)
    """Bytes of its folder and its ``/tmp`` together; of a command, ``/tmp`` is memory and as large again."""
    files: int = Field(default=20_000, ge=1)
    """Files and folders in its folder and its ``/tmp`` together; of a command, ``/tmp`` as many again."""
    seconds: float | None = Field(default=None, gt=0)
    """Wall time of one command; none: that of the rollout, and 60 s for a tool."""
    cpu_seconds: float | None = Field(default=None, gt=0)
    """Processor time of all its processes together; none: unlimited within the wall time."""
    network: bool = False
    """Whether it sees the network of this machine, loopback included."""
    read: Names = []
    """Further files and folders that it may read, at the same path."""
    image: str | None = Field(default=None, min_length=1)
    """Image of a container in place of bubblewrap; for tools and tests, which may name one a task."""
    engine: Literal["auto", "podman", "docker"] = "auto"
    """Command that runs the image; auto: podman, else docker."""
