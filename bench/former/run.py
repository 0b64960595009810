"""Programs for Agent Lightning 0.1 to 0.3, run as they are: ``make test-former``.

    python bench/former/run.py [PROGRAM …] [--write]

The examples come from the source archive of 0.1.2, the only one that holds any, and DeepWerewolf from its
public repository; programs in the shape of 0.3's SQL agent and of a large game stand in ``shapes``. Each runs
as a process of its own, with the environment ``former`` of scripts/environments.toml, on our store, gateway
and engine. A call is exact if the store has the token ids that the model sampled: by the gateway's verdict,
or, where a program calls the model past a gateway, by the digest that capture took. The last line is one JSON
object; ``not_here`` names what could not be fetched. Exit status 1 unless each program ends well, with each
call exact.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # it has `surroundings` too: this folder's first
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "programs"))
from agl_testing import ScriptedModelServer
from deep_werewolf import dashscope, tokenizer
from record import RESULTS, machine
from sources import ROOT, repository, source
from surroundings import TaskServer, questions, reply, retriever, spider_data, training, uvx

import agentlightning as agl
from agentlightning import semconv
from agentlightning.credit.verdicts import verdicts
from agentlightning.store.pages import pages
from agentlightning.types.base import LEARNED_NOTHING
from agentlightning.types.tokens import tokens_digest

HERE = Path(__file__).resolve().parent
ARCHIVE = "agentlightning==0.1.2"
DEEP_WEREWOLF = (
    "https://github.com/af-74413592/DeepWerewolf",
    "d028852aa10d6b39b14197bb8d645343420758f3",
)
PORT, RETRIEVER_PORT = 9999, 8099
"""The ports that the programs name."""
SECONDS = float(os.environ.get("AGL_PROGRAM_SECONDS", "900"))
"""After which a program is taken to hang. DeepWerewolf waits half a second before it rewards each call."""


@dataclass
class Trial:
    """One run of a program: its folder, its copy, and what was seen."""

    folder: Path
    model: ScriptedModelServer
    changed: bool = False
    calls: int = 0
    exact: int = 0
    rewarded: int = 0
    rollouts: int = 0
    needs: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a program: the scripted model in OpenAI's variables, and ``uvx``."""
        place = self.folder / "bin"
        search = (
            f"{place if place.exists() else uvx(place)}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        )
        keys = {"OPENAI_API_KEY": "token", "OPENAI_API_BASE": self.model.url, "PATH": search}
        return {**os.environ, "PYTHONWARNINGS": "ignore", "NO_COLOR": "1", **keys, **more}

    async def start(self, file: Path, *words: str, **more: str) -> asyncio.subprocess.Process:
        """Start a program in its folder; what it prints goes to a file."""
        log = (self.folder / f"{file.stem}.log").open("ab")
        return await asyncio.create_subprocess_exec(
            sys.executable,
            file.name,
            *words,
            cwd=file.parent,
            env=self.environment(**more),
            stdout=log,
            stderr=log,
        )

    async def end(self, process: asyncio.subprocess.Process, file: Path, *, stop: bool = False) -> None:
        """Wait until a program ends, or end it by SIGTERM; note how it ended if it did not end well."""
        for _ in range(2 if stop else 0):  # the second, where its server has gone already
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=20.0)
        try:
            code = await asyncio.wait_for(process.wait(), SECONDS)
        except TimeoutError:
            process.kill()
            code = await process.wait()
        if code and not (stop and code in (128 + signal.SIGTERM, -signal.SIGTERM)):
            tail = (
                (self.folder / f"{file.stem}.log")
                .read_text(encoding="utf-8", errors="replace")
                .splitlines()[-15:]
            )
            self.problems.append(f"{file.name} ended with {code}: " + "\n".join(tail))

    async def judge(self, store: Any) -> None:
        """Count the rollouts of a store, their rewards and their calls."""
        ids = [one.rollout_id async for page in pages(store.query_rollouts) for one in page]
        sampled = {tokens_digest(e.prompt_ids, a.ids) for e in self.model.answered() for a in e.answers}
        for record in [
            one for start in range(0, len(ids), 16) for one in await store.records(ids[start : start + 16])
        ]:
            self.rollouts += 1
            if record.rollout.reason:
                self.problems.append(f"{record.rollout.rollout_id}: {record.rollout.reason}")
            spans = await store.spans(record.rollout.rollout_id)
            self.rewarded += bool(agl.find_reward_spans(spans))
            self.calls += len(record.calls) + (0 if record.calls else len(record.wire))
            self.exact += sum(one.kind == "exact" for one in verdicts(record).values())
            if not record.calls:
                self.exact += sum(
                    span.attributes.get(semconv.TOKENS_DIGEST) in sampled for span in record.wire
                )


Run = Callable[[Trial, Path], Awaitable[None]]


async def with_tasks(trial: Trial, file: Path, train: list[Any], val: list[Any], **more: str) -> None:
    """A program that takes its tasks from the server at port 9999."""
    trial.needs.append(f"a server of tasks at port {PORT}, its model as the resource main_llm")
    async with TaskServer(trial.folder / "store", PORT, trial.model) as server:
        ids = [*await server.queue(train, "train"), *await server.queue(val, "val")]
        process = await trial.start(file, **more)
        waiting = asyncio.create_task(server.store.wait_for_rollouts(rollout_ids=ids))
        ended = asyncio.create_task(process.wait())
        await asyncio.wait({waiting, ended}, timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        ended.cancel()
        await trial.end(process, file, stop=True)
        await trial.judge(server.store.store)


async def apo(trial: Trial, folder: Path) -> None:
    """The prompt search: a server of tasks, and a client in a second process."""
    trial.needs.append("OPENAI_API_KEY, OPENAI_API_BASE; AGL_STORAGE, to read afterwards what was recorded")
    place = str(trial.folder / "store")
    search, client = folder / "apo" / "apo.py", folder / "apo" / "apo_client.py"
    server = await trial.start(search, AGL_STORAGE=place)
    runner = await trial.start(client)
    await trial.end(server, search)
    await trial.end(runner, client, stop=True)
    if "Best prompt found" not in (trial.folder / "apo.log").read_text(encoding="utf-8"):
        trial.problems.append("apo.py found no prompt")
    await judge_folder(trial, place)


async def calc_dev(trial: Trial, folder: Path) -> None:
    """The calculator agent on tasks of its own."""
    trial.needs.append("OPENAI_API_BASE, uvx (mcp-server-calculator); AGL_STORAGE, as above")
    file, place = folder / "calc_x" / "calc_agent_dev.py", str(trial.folder / "store")
    await trial.end(await trial.start(file, AGL_STORAGE=place), file)
    await judge_folder(trial, place)


async def calc_mcp(trial: Trial, folder: Path) -> None:
    """The test of the calculator's server, which imports nothing of Agent Lightning: under ``agl run``."""
    trial.needs.append("OPENAI_API_BASE, OPENAI_API_KEY (both by `agl run`), uvx")
    file = folder / "calc_x" / "tests" / "test_mcp_calculator.py"
    agl_command = str(Path(sys.executable).parent / "agl")
    options = ["--upstream", trial.model.url, "--model", trial.model.model]
    words = [agl_command, "run", *options, "--output", str(trial.folder / "runs"), "--", "sh", "-c"]
    line = f'OPENAI_API_BASE="$OPENAI_BASE_URL" exec {sys.executable} {file.name}'
    process = await asyncio.create_subprocess_exec(
        *words, line, cwd=file.parent, env=trial.environment(), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    for found in (trial.folder / "runs").glob("*/store.sqlite"):
        await judge_folder(trial, str(found))
    if process.returncode or "= 358637582455614" not in out.decode():
        trial.problems.append(f"ended with {process.returncode}: {out.decode()[-400:]}")


async def calc_trained(trial: Trial, folder: Path) -> None:
    """The calculator agent as it is meant: its client takes the tasks of a training, of our own engine."""
    trial.needs.append(f"AGL_SECRET, `agl store` at port {PORT}, `agl train` with agent.concurrency 0, uvx")
    run_file = training(trial.folder, PORT)
    agl_command, file = str(Path(sys.executable).parent / "agl"), folder / "calc_x" / "calc_agent.py"
    log = (trial.folder / "train.log").open("ab")
    quiet: dict[str, Any] = {"env": trial.environment(), "stdout": log, "stderr": log}
    place = str(trial.folder / "store")
    store = await asyncio.create_subprocess_exec(agl_command, "store", place, "--port", str(PORT), **quiet)
    agent = await trial.start(file)
    trainer = await asyncio.create_subprocess_exec(agl_command, "train", "--config", str(run_file), **quiet)
    try:
        code = await asyncio.wait_for(trainer.wait(), SECONDS)
        if code not in (0, LEARNED_NOTHING):  # the small policy knows another prompt, and may earn nothing
            tail = (trial.folder / "train.log").read_text(encoding="utf-8").splitlines()[-8:]
            trial.problems.append(f"agl train ended with {code}: " + "\n".join(tail))
    finally:
        await trial.end(agent, file, stop=True)
        store.send_signal(signal.SIGTERM)
        await store.wait()
    await judge_folder(trial, place)


async def rag(trial: Trial, folder: Path) -> None:
    """The agent that retrieves."""
    trial.needs.append(f"an MCP server over SSE at port {RETRIEVER_PORT} with the tool retrieve")
    tasks = [{"question": "Which city is the capital of France?", "answer": "Paris"}] * 2
    async with retriever(RETRIEVER_PORT):
        await with_tasks(trial, folder / "rag" / "rag_agent.py", tasks, tasks[:1])


async def spider(trial: Trial, folder: Path) -> None:
    """The agent that writes SQL."""
    trial.needs.append("VERL_API_BASE, VERL_SPIDER_DATA_DIR with dev.parquet and the databases")
    data = trial.folder / "data"
    data.mkdir()
    spider_data(data)
    more = {"VERL_API_BASE": f"http://localhost:{PORT}/", "VERL_SPIDER_DATA_DIR": str(data)}
    tasks = questions()
    await with_tasks(trial, folder / "spider" / "sql_agent.py", tasks[:3], tasks[3:], **more)


async def sql_shape(trial: Trial, folder: Path) -> None:
    """The SQL agent in the shape of 0.3: tried on its own questions, and trained for a step."""
    trial.needs.append("OPENAI_API_BASE, VERL_SPIDER_DATA_DIR, POLICY")
    data = trial.folder / "data"
    data.mkdir()
    spider_data(data)
    file = folder / "sql_agent.py"
    more = {"VERL_SPIDER_DATA_DIR": str(data), "POLICY": str(ROOT / "examples" / "spider" / "policy")}
    for words in ((), ("train",)):
        await trial.end(await trial.start(file, *words, **more), file)
    for found in sorted((file.parent / "runs").glob("*/store.sqlite")):
        await judge_folder(trial, str(found))


async def wolves_shape(trial: Trial, folder: Path) -> None:
    """The game in the shape of 0.1."""
    await with_tasks(trial, folder / "wolves.py", [{"game": number} for number in range(2)], [])


async def deep_werewolf(trial: Trial, folder: Path) -> None:
    """The public game of twelve, from its first night to the reward of each call."""
    trial.needs.append("DASHSCOPE_API_KEY, DashScope's two APIs, the tokenizer that it names as a folder")
    tokenizer(folder / "Qwen" / "Qwen3-8B")
    async with dashscope(trial.folder) as variables:
        await with_tasks(trial, folder / "werewolf_agent.py", [{"game": 0}], [], **variables)


async def lab(trial: Trial, folder: Path) -> None:
    """Agent Framework's own tracer for Agent Lightning, from its lab package."""
    trial.needs.append("agent-framework-lab without its extra, which would install Agent Lightning 0.3")
    file, place = folder / "framework_lab.py", str(trial.folder / "store")
    await trial.end(await trial.start(file, AGL_STORAGE=place), file)
    await judge_folder(trial, place)


async def judge_folder(trial: Trial, place: str) -> None:
    """Judge what a program kept."""
    store = agl.LightningStore(place)
    try:
        await trial.judge(store)
    finally:
        await store.close()


PROGRAMS: Mapping[str, tuple[Run, str]] = {
    "apo/apo.py + apo_client.py": (apo, "archive"),
    "calc_x/calc_agent.py": (calc_trained, "archive"),
    "calc_x/calc_agent_dev.py": (calc_dev, "archive"),
    "calc_x/tests/test_mcp_calculator.py": (calc_mcp, "archive"),
    "rag/rag_agent.py": (rag, "archive"),
    "spider/sql_agent.py": (spider, "archive"),
    "DeepWerewolf/werewolf_agent.py": (deep_werewolf, "DeepWerewolf"),
    "shapes/sql_agent.py": (sql_shape, "shape of 0.3's SQL agent"),
    "shapes/wolves.py": (wolves_shape, "shape of a game for 0.1"),
    "shapes/framework_lab.py": (lab, "shape of the lab package's own example"),
}
LEFT = {
    "calc_x/tests/test_agentops.py": "starts AgentOps' own client, which reports to AgentOps' servers",
    "rag/wiki_retriever_mcp/wiki_retriever_mcp.py": "serves an index of Wikipedia that was never published",
}
"""Programs of the archive that are not run, and why."""


def origin(of: str) -> tuple[str, Path]:
    """Where programs come from, and their folder. CalledProcessError where that cannot be fetched."""
    if of == "archive":
        return ARCHIVE, source(ARCHIVE) / "examples"
    if of == "DeepWerewolf":
        url, commit = DEEP_WEREWOLF
        return f"{url} at {commit[:7]}", repository(url, commit) / "examples" / "werewolf"
    return f"written here in the {of}", HERE / "shapes"


async def run(what: Run, told: str, whole: Path) -> dict[str, Any]:
    """Run one program in a copy of its folder ``whole`` and return what is told of it."""
    with (
        tempfile.TemporaryDirectory(prefix="former-") as made,
        ScriptedModelServer(reply, ids="always") as model,
    ):
        trial = Trial(Path(made), model)
        copied = Path(shutil.copytree(whole, Path(made) / "programs"))
        try:
            await what(trial, copied)
        except Exception as error:  # one program does not keep the others from being run
            trial.problems.append(f"{type(error).__name__}: {error}")
        same = all(
            (copied / one.relative_to(whole)).read_bytes() == one.read_bytes() for one in whole.rglob("*.py")
        )
    return {
        "origin": told,
        "unchanged": same and not trial.problems,
        "calls": trial.calls,
        "calls_exact": trial.exact,
        "rollouts": trial.rollouts,
        "rewarded": trial.rewarded,
        "needed": trial.needs,
        "problems": trial.problems,
    }


def totals(found: Mapping[str, Mapping[str, Any]], absent: Mapping[str, str]) -> dict[str, Any]:
    """The object of the last line."""
    return {
        "programs": len(found),
        "unchanged": sum(one["unchanged"] for one in found.values()),
        **{key: sum(one[key] for one in found.values()) for key in ("calls", "calls_exact", "rewarded")},
        "of": dict(found),
        "left": LEFT,
        "not_here": dict(absent),
    }


def main() -> int:
    """Run what is asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", help=f"some of: {', '.join(PROGRAMS)}")
    parser.add_argument("--write", action="store_true", help="keep the figures in bench/results/former.json")
    options = parser.parse_args()
    os.environ["AGL_SECRET"] = secrets.token_hex(32)
    os.environ.pop("AGL_STORAGE", None)
    chosen = [
        name for name in PROGRAMS if not options.programs or any(one in name for one in options.programs)
    ]
    found: dict[str, dict[str, Any]] = {}
    absent: dict[str, str] = {}
    for name in chosen:
        what, of = PROGRAMS[name]
        try:
            told, whole = origin(of)
        except subprocess.CalledProcessError as error:
            absent[name] = f"{' '.join(map(str, error.cmd))} ended with {error.returncode}"
            print(f"absent {name}: {absent[name]}")
            continue
        found[name] = one = asyncio.run(run(what, told, whole))
        mark = "ok" if sound(one) else "FAILED"
        print(
            f"{mark:6} {name}: {one['calls_exact']} of {one['calls']} calls exact, {one['rewarded']} of "
            f"{one['rollouts']} rollouts rewarded; needs {'; '.join(one['needed'])}"
        )
        for problem in one["problems"]:
            print(f"       {problem}", file=sys.stderr)
    if options.write:
        place = RESULTS / "former.json"
        place.write_text(json.dumps(kept(found, place), indent=2) + "\n", encoding="utf-8")
    print(json.dumps(totals(found, absent)))
    return 0 if found and all(map(sound, found.values())) else 1


def kept(found: Mapping[str, Mapping[str, Any]], place: Path) -> dict[str, Any]:
    """The figures, beside those that ``place`` has of programs that were not run now."""
    before = json.loads(place.read_text(encoding="utf-8"))["result"]["of"] if place.exists() else {}
    every = {**before, **found}
    result = totals({name: every[name] for name in PROGRAMS if name in every}, {})
    return {"command": "python bench/former/run.py --write", "machine": machine(), "result": result}


def sound(one: Mapping[str, Any]) -> bool:
    """Whether a program ran to its end, unchanged, with each call exact."""
    return bool(one["unchanged"] and one["calls"] and one["calls"] == one["calls_exact"])


if __name__ == "__main__":
    sys.exit(main())
