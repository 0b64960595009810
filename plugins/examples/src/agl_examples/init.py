"""``agl init``: a project that one keeps: an agent in a framework, tasks, a configuration and a test.

The files are those of ``templates/``: ``project`` is in every project, ``agents`` has the agent of each
framework. A line of theirs that depends on what was asked for is replaced here, and must be there.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from agentlightning._version import __version__
from agentlightning.plugins.manager import load as load_plugins
from agentlightning.terminal import print_json
from agentlightning.train.config import fields
from agentlightning.types import UsageError
from agentlightning.types.base import meant, vendor
from agentlightning.types.work import missing_policy_message
from agl_examples.bundled.task_set import task_set

TEMPLATES = Path(__file__).with_name("templates")
NAME = "my-agent"
"""The project's name in the templates."""
POLICY = re.compile(r"policy: tiny .*; or (a folder.*)")
"""The line of the policy: what is said of the bundled one, and of all others."""
SUITE = "local,examples,gateway,programs,audit,testing"
"""What every project needs of the suite: extras of ``agl-suite``."""


class Framework(NamedTuple):
    """What a project in a framework has beside the agent."""

    title: str
    requires: str
    """The extra of ``agl-suite`` that brings its adapter and itself, or a package."""


FRAMEWORKS = {
    "openai": Framework("the openai package", "openai"),
    "langgraph": Framework("LangGraph", "[langgraph]"),
    "langchain": Framework("LangChain", "[langchain]"),
    "autogen": Framework("AutoGen", "[autogen]"),
    "openai-agents": Framework("the OpenAI Agents SDK", "[openai-agents]"),
    "pydantic-ai": Framework("Pydantic AI", "[pydantic-ai]"),
    "crewai": Framework("CrewAI", "[crewai]"),
    "agentscope": Framework("AgentScope", "[agentscope]"),
    "agent-framework": Framework("Microsoft Agent Framework", "[agent-framework]"),
    "command": Framework("a program of its own", ""),
}


def register(app: typer.Typer) -> None:
    @app.command("init")
    def init(
        folder: Annotated[Path, typer.Argument(help="A new or empty folder.")] = Path(NAME),
        framework: Annotated[
            str, typer.Option(metavar="NAME", help=f"Of the agent: {', '.join(FRAMEWORKS)}.")
        ] = "openai",
        model: Annotated[
            str,
            typer.Option(help="The policy: a folder, owner/name of the Hub, or a name of `agl policy list`."),
        ] = "tiny",
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Write a project that trains as it is: agent, configuration, tasks, a test. Then change it."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} is not empty: give a new folder")
        files = dict(project(folder.resolve().name, framework, model))
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        if as_json:
            print_json({"folder": str(folder), "framework": framework, "files": sorted(files)})
        else:
            print(
                f"{folder}: {', '.join(sorted(files))}\n"
                f"Next: cd {shlex.quote(str(folder))}; agl doctor --config config.yaml; "
                "agl train --config config.yaml"
            )


def project(name: str, framework: str, model: str) -> Iterator[tuple[str, str]]:
    """Yield the files of a project: name and text. ``name``: the folder's, after which the agent is called.

    Raises:
        UsageError: There is no such framework, or no such model.
    """
    key = framework.lower().replace("_", "-")
    if key not in FRAMEWORKS:
        raise UsageError(f"--framework {framework}: there is no such template{meant(key, FRAMEWORKS, '')}")
    title, requires = FRAMEWORKS[key]
    called = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or NAME
    written = {
        path.name: path.read_text(encoding="utf-8")
        for path in (TEMPLATES / "project").iterdir()
        if path.is_file()
    }
    config = with_policy(written["config.yaml"], model)
    if key == "command":
        program = '{command: [python, agent.py, "{task.question}"], program: {files: [agent.py, tools.py]},\n'
        program += "  reward: grading:graded, "
        config = replaced(config, "{target: agent:solve, ", program)
        config = replaced(config, "val.jsonl}\n", "val.jsonl}\n  private: [answer]\n")
        written["grading.py"] = (TEMPLATES / "agents" / "grading.py").read_text(encoding="utf-8")
        del written["ask.py"]  # the program is asked as it is
        readme = written["README.md"].splitlines(keepends=True)
        written["README.md"] = "".join(line for line in readme if "ask.py" not in line)
    yield ".gitignore", written.pop("gitignore")
    yield "agent.py", (TEMPLATES / "agents" / f"{key}.py").read_text(encoding="utf-8")
    yield "requirements.txt", requirements(requires)
    yield "config.yaml", replaced(config, f"name: {NAME}", f"name: {called}")
    for file, text in written.items():
        if file != "config.yaml":
            yield file, text.replace("FRAMEWORK", title).replace(f"# {NAME}\n", f"# {called}\n")
    yield "config.schema.json", json.dumps(run_config_schema(), indent=1, ensure_ascii=False) + "\n"
    math = task_set("math")
    for file, tasks in (("train.jsonl", math.train), ("val.jsonl", math.val)):
        lines = [{"question": task["question"], "answer": task["answer"]} for task in tasks]
        yield file, "".join(json.dumps(line) + "\n" for line in lines)


def replaced(text: str, former: str, present: str) -> str:
    """Return a template's text with a part of it exchanged, which must be there."""
    if former not in text:
        raise ValueError(f"the template has no {former!r}")
    return text.replace(former, present)


def with_policy(config: str, model: str) -> str:
    """Return the text of ``config.yaml`` for a model: its line of the policy, and the learning rate."""
    if model == "tiny":
        return config
    policy = policy_of(model)
    plain = policy if re.fullmatch(r"[\w./:-]+", policy) else json.dumps(policy)
    config = re.sub(POLICY, lambda line: f"policy: {plain}  # {line[1]}", config)
    return replaced(config, "lr: 1.0e-4", "lr: 1.0e-5")


def requirements(requires: str) -> str:
    """Return the text of ``requirements.txt``."""
    extra = f",{requires[1:-1]}" if requires.startswith("[") else ""
    package = [] if not requires or extra else [requires]
    about = "# The suite is on no package index: add --find-links WHEELS, the folder that its wheels are in."
    return "\n".join([about, f"agl-suite[{SUITE}{extra}]=={__version__}", *package, "pytest", ""])


def policy_of(model: str) -> str:
    """Return what stands for a model in a run's file.

    Raises:
        UsageError: Nobody but its vendor has the model, or there is no such thing.
    """
    if Path(model).expanduser().is_dir():
        return str(Path(model).expanduser().resolve())
    specs = load_plugins().policies.values()
    if vendor(model) is None:
        if any(model == spec.name or (spec.prefix and model.startswith(spec.name)) for spec in specs):
            return model
        if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", model):
            return f"hub:{model}"
    raise UsageError(f"--model {missing_policy_message(model)}")


def run_config_schema() -> dict[str, Any]:
    """Return the JSON Schema of a run's file, by which editors complete and check it, in plain text:
    docstrings without the markup of Sphinx. A file names it in its first line: ``# yaml-language-server:
    $schema=…``.
    """
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **fields().model.model_json_schema()}
    schema["required"] = ["agent", "backend"]
    found: dict[str, Any] = _plain(schema)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if key != "title"}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, str):
        return re.sub(r"\s+", " ", re.sub(r":\w+:`[.~]?([^`]*)`", r"`\1`", value)).replace("``", "`")
    return value
