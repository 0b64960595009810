"""``agl judge check`` measures a judge on labelled pairs; ``agl judge grade`` grades one text."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from agentlightning.child_environment import engine_key
from agentlightning.plugins.manager import load
from agentlightning.plugins.stores import open_store
from agentlightning.terminal import print_json
from agentlightning.types import UsageError
from agl_audit.commands import OneOf, RunArgument, StoreOfRun
from agl_judge.check import check as measure, read_pairs
from agl_judge.graders.relative import ABOUT
from agl_judge.own_gateway import open_client, read_judge

Judge = Annotated[
    str,
    typer.Option(
        help="MODEL@URL of an OpenAI-compatible API, a policy's folder, or a name of `agl policy list`."
    ),
]
KeyEnv = Annotated[str | None, typer.Option(help="Environment variable that holds the endpoint's key.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Judges: measure one before you trust it.", no_args_is_help=True)

    @group.command("check")
    def check(
        pairs: Annotated[
            Path, typer.Argument(metavar="LABELLED.jsonl", help="prompt, a, b, better: a, b or tie.")
        ],
        judge: Judge,
        key_env: KeyEnv = None,
        repeats: Annotated[int, typer.Option(min=1, help="How often each question is asked.")] = 3,
        about: Annotated[str, typer.Option(help="What makes an answer better, as a run's `about`.")] = ABOUT,
        store: Annotated[str, typer.Option(help="Store that keeps the judge's calls.")] = ":memory:",
    ) -> None:
        """Show a judge labelled pairs in both orders and print its agreement with the labels, its bias for a
        place, and its cost, as one JSON object.
        """
        print_json(asyncio.run(_check(read_pairs(pairs), judge, key_env, repeats, about, store)))

    @group.command("grade")
    def grade(
        grader: Annotated[Path, typer.Argument(metavar="GRADER.json", help="A grader of OpenAI's.")],
        item: Annotated[str, typer.Option(help="The item, as JSON.")] = "{}",
        sample: Annotated[str, typer.Option(help="The text that is graded.")] = "",
        judge: Annotated[
            str | None, typer.Option(help="As of check: stands for the grader's models.")
        ] = None,
        key_env: KeyEnv = None,
    ) -> None:
        """Grade one text by a grader of OpenAI's and print its score as JSON."""
        try:
            read = json.loads(item)
        except ValueError as error:
            raise UsageError(f"--item: it is no JSON: {error}") from None
        print_json({"score": asyncio.run(_grade(grader, read, sample, judge, key_env))})

    @group.command("rescore")
    def rescore(
        what: RunArgument,
        reward: Annotated[str, typer.Option(help="A group reward: a name of ours, or module:function.")],
        options: Annotated[str, typer.Option(help="Its options, as JSON.")] = "{}",
        name: Annotated[
            str | None, typer.Option(help="Name of the new rewards; default: name@digest.")
        ] = None,
        judge: Annotated[
            list[str] | None,
            typer.Option(help="NAME=MODEL@URL or NAME=FOLDER, for questions that are not on record."),
        ] = None,
        key_env: KeyEnv = None,
        pythonpath: Annotated[Path, typer.Option(help="Folder that modules are imported from, too.")] = Path(
            "."
        ),
        run: OneOf = None,
        store: StoreOfRun = None,
    ) -> None:
        """Give the groups of a stored run other rewards, as a version beside those that they have. Judges are
        answered from the run's record; without --judge nothing is sent.
        """
        sys.path.insert(0, str(pythonpath.expanduser().resolve()))
        print_json(asyncio.run(_rescore(what, store, run, reward, options, name, judge or [], key_env)))

    app.add_typer(group, name="judge")


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not (key := engine_key(variable)):
        raise UsageError(f"--key-env: the environment variable {variable} is not set")
    return key


async def _check(pairs: Any, judge: str, key_env: str | None, repeats: int, about: str, place: str) -> Any:
    plugins = load()
    store, counts = open_store(place, plugins=plugins), Counter[str]()
    try:
        judges = {"judge": read_judge(judge, _key(key_env))}
        async with open_client(store, judges, "judge-check", plugins, count=_counter(counts)) as client:
            return await measure(client, "judge", pairs, counts, repeats=repeats, about=about)
    finally:
        await store.close()


async def _grade(file: Path, item: Any, text: str, judge: str | None, key_env: str | None) -> float | None:
    from agl_judge.client import BadVerdict
    from agl_judge.openai_graders.grader import OpenAIGrader, sample_of_text

    plugins = load()
    grader = OpenAIGrader.read(file, None if judge is None else "judge")
    store = open_store(":memory:", plugins=plugins)
    try:
        judges = {} if judge is None else {"judge": read_judge(judge, _key(key_env))}
        async with open_client(store, judges, "judge-grade", plugins) as client:

            async def ask(messages: Any, read: Any, **sampling: Any) -> Any:
                return (await client.ask("judge", messages, read, **sampling)).value

            return await grader.part.score({"item": item, "sample": sample_of_text(text)}, ask)
    except BadVerdict as error:
        raise UsageError(f"{file}: {error}") from None
    finally:
        await store.close()


async def _rescore(
    what: str,
    store: str | None,
    run: str | None,
    reward: str,
    options: str,
    name: str | None,
    judges: list[str],
    key_env: str | None,
) -> dict[str, Any]:
    from agl_audit.run import open_run
    from agl_judge.client import JudgeClient
    from agl_judge.rescoring import rescore
    from agl_judge.section import make_grader

    try:
        given = json.loads(options)
    except ValueError as error:
        raise UsageError(f"--options: it is no JSON: {error}") from None
    grader = make_grader({reward: given} if given else reward, Path("."), "--reward")
    served = {}
    for one in judges:
        who, _, which = one.partition("=")
        served[who] = read_judge(which, _key(key_env), who)
    counts = Counter[str]()
    plugins = load()
    async with open_run(what, store, run=run, read_only=False) as opened:
        client: Any = JudgeClient(opened.store, None, opened.run_id, count=_counter(counts))
        if served:
            client = open_client(opened.store, served, opened.run_id, plugins, count=_counter(counts))
        async with client as open_one:
            return await rescore(opened, grader, open_one, counts, name)


def _counter(counts: Counter[str]) -> Any:
    def count(what: str, n: float) -> None:
        counts[what] += int(n)

    return count
