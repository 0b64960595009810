"""A first agent of one's own in each framework, from wheels and an empty folder: ``make first-own-agent``.

    python bench/first_own_agent/run.py [FRAMEWORK …]

An empty environment gets the wheels that ``agl init`` comes in; CrewAI, which keeps others from their newest
version, has one of its own. For each framework ``agl init`` writes a project, its ``requirements.txt`` is
installed, its test is run, ``agl doctor`` must find nothing that keeps it from training, and ``agl train``
must make it better on its held-out tasks. In the project of the first, the agents of ``wrong/`` take the
place of its own in turn: the doctor must name what is wrong with each. The last line is JSON: for each
framework the minutes of all of it (the first in an environment installs torch too), and the held-out reward
before and after; for each wrong agent, what the doctor says. Exit status 1 if anything of this does not hold.

Needs Python 3.11 or later; the standard library is enough. pip needs a package index for what is not ours.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from first_hour import new_users_environment  # noqa: E402

FRAMEWORKS = (
    "openai", "langgraph", "langchain", "autogen", "openai-agents", "pydantic-ai", "agentscope",
    "agent-framework", "crewai", "command",
)  # fmt: skip
ALONE = ("crewai",)
"""Frameworks with an environment of their own."""
WRONG = {path.stem: path for path in sorted(Path(__file__).with_name("wrong").glob("*.py"))}
"""The kind of fault that the doctor must name → the agent that has it."""
QUIET = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""Frameworks that would write home."""


class Place:
    """A folder with a project in it, and the environment that the project is used in."""

    def __init__(self, folder: Path, environment: Path, wheels: Path, shell: dict[str, str]) -> None:
        self.folder, self.environment, self.wheels, self.shell = folder, environment, wheels, shell | QUIET
        self.project = folder / "my-agent"

    def run(self, *words: str | Path, check: bool = True) -> list[str]:
        """Run a program of the environment in the project, once there is one; return its lines of stdout."""
        program = self.environment / "bin" / str(words[0])
        done = subprocess.run(
            [str(program), *map(str, words[1:])],
            cwd=self.project if self.project.exists() else self.folder,
            env=self.shell,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        if check and done.returncode:
            print(done.stdout, file=sys.stderr)
            raise subprocess.CalledProcessError(done.returncode, words)
        return done.stdout.splitlines()

    def install(self, *words: str | Path) -> None:
        """Install by pip, ours from the wheels."""
        held = ("-c", ROOT / "constraints.txt", "--find-links", self.wheels)
        self.run("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *held, *words)


def made(place: Place, framework: str) -> None:
    """Make the project, and the environment if there is none."""
    place.folder.mkdir()
    if not place.environment.exists():
        subprocess.run([sys.executable, "-m", "venv", place.environment], check=True)
        place.install("agl-suite[examples]")
    place.run("agl", "init", "my-agent", "--framework", framework)
    place.install("-r", place.project / "requirements.txt")


def trained(place: Place) -> dict[str, Any]:
    """Go the way of the project's README; return the last line of ``agl train``."""
    place.run("pytest", "-q")
    report = json.loads(place.run("agl", "doctor", "--config", "config.yaml", "--json")[-1])
    assert report["ok"], report
    summary: dict[str, Any] = json.loads(
        place.run("agl", "train", "--config", "config.yaml", "--run", "first")[-1]
    )
    return summary


def told(place: Place) -> dict[str, str]:
    """Return what the doctor says of each wrong agent: of the fault that it has, or nothing."""
    said = {}
    for kind, path in WRONG.items():
        shutil.copyfile(path, place.project / "agent.py")
        lines = place.run("agl", "doctor", "--config", "config.yaml", "--quick", "--json", check=False)
        checks = json.loads(lines[-1])["checks"]
        faults = [fault for check in checks for fault in check["data"].get("faults", ())]
        said[kind] = next((f"{one['place']} {one['what']}" for one in faults if one["kind"] == kind), "")
    return said


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description="A first agent of one's own in each framework.")
    parser.add_argument("frameworks", nargs="*", help=f"of {', '.join(FRAMEWORKS)}; default: all")
    asked = parser.parse_args().frameworks or list(FRAMEWORKS)
    if unknown := sorted({*asked} - {*FRAMEWORKS}):
        parser.error(f"unknown: {', '.join(unknown)}; the frameworks are {', '.join(FRAMEWORKS)}")
    found: dict[str, dict[str, float]] = {}
    wrong: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="first-own-agent-") as given:
        folder = Path(given).resolve()
        shell, wheels = new_users_environment(folder / "home"), folder / "wheels"
        builds = subprocess.run(
            [sys.executable, ROOT / "scripts" / "environment", "wheels"], check=True, stdout=subprocess.PIPE
        )
        python = builds.stdout.decode().split()[-1]
        subprocess.run(
            [ROOT / "scripts" / "wheels", wheels], check=True, env={**shell, "PYTHON": python},
            stdout=sys.stderr,
        )  # fmt: skip
        for framework in asked:
            began, environment = time.monotonic(), folder / ("alone" if framework in ALONE else "env")
            place = Place(folder / framework, environment, wheels, shell)
            print(f"{framework}: begun", file=sys.stderr, flush=True)
            try:
                made(place, framework)
                summary = trained(place)
                found[framework] = {
                    "minutes": round((time.monotonic() - began) / 60, 1),
                    "before": round(summary["reward_before"], 3),
                    "after": round(summary["reward_after"], 3),
                }
                print(f"{framework}: {found[framework]}", file=sys.stderr, flush=True)
                wrong = wrong or told(place)
            except (AssertionError, subprocess.CalledProcessError) as error:
                print(f"{framework}: FAILED: {error}", file=sys.stderr, flush=True)
    print(json.dumps({"frameworks": found, "wrong_agents": wrong}))
    better = all(one["after"] > one["before"] for one in found.values())
    return int(not (better and len(found) == len(asked) and all(wrong.values()) and wrong))


if __name__ == "__main__":
    sys.exit(main())
