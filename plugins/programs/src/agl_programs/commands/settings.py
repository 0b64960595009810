"""Fields of a run's description for an agent that is a command (``docs/commands.md``)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic.json_schema import SkipJsonSchema

from agentlightning.types.sections import Names, Section
from agl_programs.sandbox.settings import SandboxSection

OUTPUT_BYTES = 1 << 20
"""Bytes that are kept of each of a program's two output streams."""
EXIT_STATUS, JSON_LINE = "exit-status", "json"
REWARD_KEY = "reward"
"""Key of the reward in a JSON object, if none is named."""


class RewardSection(Section):
    """The place of a program's reward: a key of its last JSON line, a file, or a Python function."""

    key: str | None = Field(default=None, min_length=1)
    """Key in the last line of standard output that is a JSON object; with ``file``, in that file's object."""
    file: str | None = Field(default=None, min_length=1)
    """File in the working folder; without ``key`` it holds one number."""
    function: str | None = None
    """``module:function``, called with ``task`` and ``result``."""

    @model_validator(mode="after")
    def _one_place(self) -> RewardSection:
        if self.function is not None and (self.key is not None or self.file is not None):
            raise ValueError("reward: give either function, or key and file")
        if self.function is None and self.key is None and self.file is None:
            raise ValueError("reward: give key, file or function")
        if self.file is not None and (Path(self.file).is_absolute() or ".." in Path(self.file).parts):
            raise ValueError("reward: file is a path inside the working folder, without ..")
        return self


class ContainerSection(Section):
    """The container in which the program runs."""

    image: str = Field(min_length=1)
    """Image that holds the program."""
    engine: Literal["auto", "podman", "docker"] = "auto"
    """Command that runs it; auto: podman, else docker."""
    options: list[str] = []
    """Further words for ``podman run`` or ``docker run``."""


class ProgramSection(Section):
    """How the program of ``agent.command`` runs."""

    stdin: str | None = None
    """Text for its standard input, with placeholders; none: it reads nothing."""
    files: Names = []
    """Files and folders that are copied into the working folder of each attempt; of a folder, its
    contents."""
    env: dict[str, str] = {}
    """Further environment variables, with placeholders in their values."""
    pass_env: Names = []
    """Names of variables that are passed on from this environment; ``NAME_*`` for all that begin so."""
    output_bytes: int = Field(default=OUTPUT_BYTES, ge=0)
    """Bytes that are kept of standard output, and of standard error: the last ones. The others are
    counted."""
    keep: str | None = None
    """Folder in which the working folders are kept, by attempt; none: they are removed."""
    container: ContainerSection | None = None
    """Run the program in a container; none: as a process of this machine."""
    sandbox: SandboxSection | None = None
    """Run the program in the kernel's isolation, with limits; none: it has the rights of this process."""

    @model_validator(mode="after")
    def _one_isolation(self) -> ProgramSection:
        if self.sandbox is not None and self.container is not None:
            raise ValueError("program: give either container or sandbox")
        if self.sandbox is not None and self.sandbox.image is not None:
            raise ValueError(
                "program: sandbox.image is for agl.Sandbox, whose container has no network and so reaches no "
                "model; a program in an image is program.container"
            )
        return self


_Object = SkipJsonSchema[Annotated[Any, Tag("<object>")]]


def _kind(value: Any) -> str:
    if isinstance(value, dict | RewardSection):
        return "<reward>"
    return "<word>" if isinstance(value, str) else "<object>"


RewardField: TypeAlias = Annotated[
    Annotated[str, Tag("<word>")] | Annotated[RewardSection, Tag("<reward>")] | _Object, Discriminator(_kind)
]
"""``exit-status``, ``json``, ``module:function``, or a section; ``None``: the program writes its reward into
the file that ``AGL_REWARD_FILE`` names, or emits it."""
CommandField: TypeAlias = Annotated[
    Annotated[str, Tag("<line>")] | Annotated[list[str], Tag("<words>")] | Annotated[None, Tag("<none>")],
    Discriminator(lambda value: _form(value)),
]


def _form(value: Any) -> str:
    return "<none>" if value is None else "<words>" if isinstance(value, list | tuple) else "<line>"


class CommandFields(Section):
    """Fields of the section ``agent`` for a program as the agent."""

    command: CommandField = None
    """A program as the agent, instead of ``target``: its words, or a line for the shell
    (``docs/commands.md``)."""
    reward: RewardField = None
    """The reward of ``command``: ``exit-status``, ``json``, ``module:function``, or its key or file."""
    program: ProgramSection = ProgramSection()
    """How the program of ``command`` runs."""

    @model_validator(mode="after")
    def _one_agent(self) -> CommandFields:
        if self.command is not None and getattr(self, "target", None) is not None:
            raise ValueError("agent: give either target (a Python object), or command (a program)")
        if self.command is None and (self.reward is not None or self.program != ProgramSection()):
            raise ValueError("agent: reward and program belong to a command, and there is none")
        return self
