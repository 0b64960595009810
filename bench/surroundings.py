"""One small training run, and the commands that read it, in the surroundings that people have.

    python bench/surroundings.py [NAME …]        (or: make surroundings, some: NAMES="proxy gbk")

A plain agent on the OpenAI SDK is trained for one step of the bundled policy, evaluated, listed and compared,
by one command line after the other: behind a proxy that is dead, in locales that are not UTF-8, as a user
without a name and a home, in a folder with spaces and letters of other scripts, on a machine with IPv6 alone,
and by each Python that the suite supports. Each prints a line of JSON; the last line sums them up. ``ok`` is
true, false, or "not here" with the reason, where this machine cannot make the surroundings: never a guess.
Exit status 1 if one is false.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOBODY = 54_321
"""A user id that no machine's list of users holds."""
DEAD = "http://127.0.0.1:9"
"""A proxy at which nothing listens: a call that is sent to it fails at once."""
PYTHONS = ("3.11", "3.12", "3.13")
PARTS = ("core", "plugins/local", "plugins/trackers", "plugins/audit")
"""What the commands below need of the suite."""
IPV6_ALONE = 'ip link set lo up && ip -4 addr flush dev lo && exec "$@"'
AGL = "import sys; from agentlightning.cli import main; sys.argv[0] = 'agl'; main()"
"""The command ``agl``, of whichever interpreter."""
FAMILIES = """
import socket
found = []
for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
    try:
        socket.create_server((host, 0), family=family).close()
        found.append(host)
    except OSError:
        pass
print(found)
"""
"""Prints the loopback addresses that can be bound."""
CONFIG = """\
agent: {target: asker:ask, name: asker, concurrency: 4}
training: {algorithm: grpo, steps: 1, batch_size: 2, recipe: {group_size: 4}}
environment: {train: {file: tasks.jsonl}, val: {file: tasks.jsonl, limit: 2}}
backend: {policy: tiny, options: {max_len: 256}}
pythonpath: [.]
"""
AGENT = '''\
"""Asks once, by a client of its own. The reward is a number of each attempt: groups always have a spread."""

import zlib

import agentlightning as agl
from openai import AsyncOpenAI


async def ask(task, llm):
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        with agl.tagged(agent="größe 尺寸"):
            await client.chat.completions.create(
                model=llm.model, messages=[{"role": "user", "content": task["question"]}], max_tokens=8
            )
    return zlib.crc32(llm.api_key.encode()) % 997 / 997
'''
TASKS = [{"question": f"{word} + {number}?"} for number, word in enumerate(("naïve", "两", "a\u2028b", "🙂"))]


class NotHere(Exception):
    """This machine cannot make the surroundings."""


class Failed(Exception):
    """A command did not do what it does elsewhere."""


@dataclass
class Surroundings:
    """Where commands are run."""

    folder: Path
    """The project's folder."""
    variables: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    prefix: tuple[str, ...] = ()
    """Words before each command line."""
    python: str = sys.executable

    def run(self, *words: str) -> str:
        """Run ``agl`` with these words; return its standard output."""
        done = self._python(AGL, *words)
        said = done.stderr.decode(errors="backslashreplace").strip()
        if done.returncode or "Traceback" in said:
            raise Failed(f"agl {words[0]}: exit status {done.returncode}: {said[-600:]}")
        return done.stdout.decode(errors="backslashreplace")

    def ask(self, code: str) -> str:
        """Return what a line of Python prints here. Raise :class:`NotHere` if nothing runs here."""
        try:
            done = self._python(code)
        except OSError as error:
            raise NotHere(str(error)) from None
        if done.returncode:
            raise NotHere(done.stderr.decode(errors="replace").strip()[-300:])
        return done.stdout.decode(errors="replace").strip()

    def _python(self, code: str, *words: str) -> subprocess.CompletedProcess[bytes]:
        line = [*self.prefix, self.python, "-c", code, *words]
        return subprocess.run(
            line, cwd=self.folder, env=self.variables, stdin=subprocess.DEVNULL, capture_output=True
        )


def work(here: Surroundings) -> dict[str, Any]:
    """Train, evaluate, list and compare; return what was counted."""
    trained = _last(here.run("train", "--config", "config.yaml", "--set", "training.evaluate_every=1"))
    if trained["calls"] != trained["calls_exact"] or not trained["calls"]:
        raise Failed(f"of {trained['calls']} calls {trained['calls_exact']} were captured exactly")
    scored = _last(here.run("eval", "--config", "config.yaml", "--policy", "tiny"))
    if failed := here.run("rollouts", trained["run_id"], "--failed", "--json").strip():
        raise Failed(f"a rollout failed: {failed[:300]}")
    here.run("rollouts", trained["run_id"])
    here.run("runs")
    here.run("explain", trained["run_id"])
    here.run("logs", trained["run_id"])
    here.run("top", "--once")
    here.run("compare", trained["run_id"], trained["run_id"])
    here.run("verify", trained["run_id"])
    here.run("export", trained["run_id"], "exported")
    if trained["run_id"] not in here.run("runs", "--json"):
        raise Failed("agl runs does not list the run")
    return {"calls": trained["calls"], "evaluated": scored}


def _last(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out.strip().split("\n")[-1])
    return found


# ------------------------------------------------------------------------------------------- surroundings
def plain(here: Surroundings) -> Surroundings:
    """As this terminal is."""
    return here


def proxy(here: Surroundings) -> Surroundings:
    """``HTTP_PROXY`` and its like name a proxy at which nothing listens."""
    names = [f"{kind}_proxy" for kind in ("http", "https", "all")]
    dead = {name: DEAD for lower in names for name in (lower, lower.upper())}
    kept = {name: value for name, value in here.variables.items() if name.lower() != "no_proxy"}
    return replace(here, variables={**kept, **dead})


def c_locale(here: Surroundings) -> Surroundings:
    """The locale C, in ASCII: Python's own switch to UTF-8 is off, as it is where a program embeds Python."""
    return _located(here, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "ascii")


def gbk(here: Surroundings) -> Surroundings:
    """A Chinese locale in GBK."""
    return _made_locale(here, "zh_CN", "GBK", "gbk")


def latin1(here: Surroundings) -> Surroundings:
    """A German locale in ISO-8859-1."""
    return _made_locale(here, "de_DE", "ISO-8859-1", "iso8859-1")


def _made_locale(here: Surroundings, name: str, charset: str, codec: str) -> Surroundings:
    if shutil.which("localedef") is None:
        raise NotHere("localedef is missing (Debian: locales)")
    place = Path(tempfile.mkdtemp(dir=here.folder.parent)) / f"{name}.{charset}"
    done = subprocess.run(["localedef", "-i", name, "-f", charset, str(place)], capture_output=True)
    if not place.exists():
        raise NotHere(f"localedef: {done.stderr.decode(errors='replace')[-200:]}")
    return _located(here, {"LOCPATH": str(place.parent), "LC_ALL": place.name, "PYTHONUTF8": "0"}, codec)


def _located(here: Surroundings, variables: dict[str, str], codec: str) -> Surroundings:
    kept = {name: v for name, v in here.variables.items() if name not in ("PYTHONIOENCODING", "PYTHONUTF8")}
    here = replace(here, variables={**kept, **variables})
    found = here.ask("import codecs, sys; print(codecs.lookup(sys.stdout.encoding).name)")
    if found != codec:
        raise NotHere(f"standard output is {found} here, not {codec}")
    return here


def nobody(here: Surroundings) -> Surroundings:
    """A user id without an entry in the list of users, and no ``HOME``: as in many containers."""
    kept = {name: v for name, v in here.variables.items() if name not in ("HOME", "USER", "LOGNAME")}
    prefix = ("unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}")
    here = replace(here, variables=kept, prefix=prefix)
    if (found := here.ask("import os; print(os.getuid(), os.path.expanduser('~'))")) != f"{NOBODY} ~":
        raise NotHere(f"user id and home are {found}")
    return here


def folder(here: Surroundings) -> Surroundings:
    """A path with spaces, quotes and letters of other scripts."""
    there = here.folder.parent / "mein Ordner 'ü' 项目 🙂"
    here.folder.rename(there)
    return replace(here, folder=there)


def ipv6(here: Surroundings) -> Surroundings:
    """A network of its own, whose loopback has ``::1`` and no IPv4."""
    here = replace(here, prefix=("unshare", "-n", "sh", "-c", IPV6_ALONE, "sh"))
    if (found := here.ask(FAMILIES)) != "['::1']":
        raise NotHere(f"the loopback addresses are {found}")
    return here


def python(version: str) -> Callable[[Surroundings], Surroundings]:
    """Another Python, in an environment of its own (``.venvs/surroundings-VERSION``, made once)."""

    def make(here: Surroundings) -> Surroundings:
        if sys.version_info[:2] == tuple(map(int, version.split("."))):
            return here
        return replace(here, python=str(_environment(version)))

    make.__doc__ = f"Python {version}."
    return make


def _environment(version: str) -> Path:
    made = ROOT / ".venvs" / f"surroundings-{version}"
    inside, done = made / "bin" / "python", made / "installed"
    parts = [word for part in PARTS for word in ("-e", f"./{part}")]
    manifests = [(ROOT / part / "pyproject.toml").read_text(encoding="utf-8") for part in PARTS]
    wanted = "\n".join([*parts, *manifests])
    if done.exists() and done.read_text(encoding="utf-8") == wanted:
        return inside
    subprocess.run([_interpreter(version), "-m", "venv", "--clear", made], check=True, stdout=sys.stderr)
    line = [str(inside), "-m", "pip", "install", "-q", "-c", "constraints.txt", *parts, "openai"]
    if subprocess.run(line, cwd=ROOT, stdout=sys.stderr).returncode:
        raise Failed(f"pip cannot install the suite for Python {version}")
    done.write_text(wanted, encoding="utf-8")
    return inside


def _interpreter(version: str) -> str:
    """The Python of a version: on PATH, or one of pyenv's, whose shims run only what is switched on."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    others = sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)
    for place in filter(None, [shutil.which(f"python{version}"), *map(str, others)]):
        if subprocess.run([place, "-c", ""], capture_output=True).returncode == 0:
            return place
    raise NotHere(f"there is no python{version} on PATH, and none of pyenv's")


EVERY: dict[str, Callable[[Surroundings], Surroundings]] = {
    "plain": plain, "proxy": proxy, "c": c_locale, "gbk": gbk, "latin1": latin1, "nobody": nobody,
    "folder": folder, "ipv6": ipv6, **{f"python{version}": python(version) for version in PYTHONS},
}  # fmt: skip


@contextmanager
def project() -> Iterator[Surroundings]:
    """Make the project in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="agl-surroundings-") as made:
        place = Path(made) / "project"
        place.mkdir()
        (place / "config.yaml").write_text(CONFIG, encoding="utf-8")
        (place / "asker.py").write_text(AGENT, encoding="utf-8")
        lines = (json.dumps(task, ensure_ascii=False) + "\n" for task in TASKS)
        (place / "tasks.jsonl").write_text("".join(lines), encoding="utf-8")
        yield Surroundings(place, {**os.environ, "AGL_STORAGE": ""})


def result(name: str) -> dict[str, Any]:
    """Do the work in the surroundings ``name``."""
    about = (EVERY[name].__doc__ or "").strip().split("\n")[0]
    with project() as here:
        try:
            return {"name": name, "about": about, "ok": True, **work(EVERY[name](here))}
        except NotHere as error:
            return {"name": name, "about": about, "ok": "not here", "why": str(error)}
        except Failed as error:
            return {"name": name, "about": about, "ok": False, "why": str(error)}


def main(names: Sequence[str]) -> int:
    """Do the work in each surroundings, one after the other."""
    if unknown := sorted({*names} - {*EVERY}):
        print(f"no surroundings {', '.join(unknown)}: there are {', '.join(EVERY)}", file=sys.stderr)
        return 2
    found = []
    for name in names or EVERY:
        found.append(result(name))
        print(json.dumps(found[-1]), flush=True)
    by = {state: [one["name"] for one in found if one["ok"] == state] for state in (True, False, "not here")}
    told = {"surroundings": len(found), "ok": len(by[True]), "failed": by[False], "not_here": by["not here"]}
    print(json.dumps(told))
    return bool(by[False])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
