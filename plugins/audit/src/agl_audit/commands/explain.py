"""``agl explain``: why a token, a call or a rollout was trained as it was, or was not.

The panels show the JSON of :mod:`agl_audit.explanation.explain`, the number first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agentlightning.cli.options import JsonObject
from agentlightning.terminal import Console, TextTable, plural, print_json
from agentlightning.types.select import caller_name
from agl_audit.commands import InRun, InStore
from agl_audit.drawing import short
from agl_audit.explanation.explain import explain as explain_target
from agl_audit.figures import number
from agl_audit.targets import is_run, last_trained, open_target

Facts = dict[str, Any]
Line = tuple[RenderableType, RenderableType | None]
"""A label and its value; a line without a value is not shown."""
_MOST = 12
"""Members of a group that are listed."""
_PLAIN: Facts = {"box": None, "padding": (0, 2, 0, 0)}
"""Options of a table inside a panel."""


def register(app: typer.Typer) -> None:
    @app.command("explain")
    def explain(
        what: Annotated[
            str,
            typer.Argument(
                help="Rollout (ro-…), call (at-…-3.0) or token (at-…-3.0:7, counted from 0); or a run: the "
                "last rollout that it trained."
            ),
        ],
        run: InRun = None,
        store: InStore = None,
        policy: Annotated[
            Path | None, typer.Option(help="Score tokens under this policy folder, not the run's newest.")
        ] = None,
        as_json: JsonObject = False,
    ) -> None:
        """Explain a rollout, a call or a token: reward, rule, baseline with its group, advantage, weight,
        row, mask, merge, and its logprob then and now.
        """
        found = asyncio.run(_explain(what, run, store, policy))
        if as_json:
            print_json(found)
        else:
            Console().print(view(found), highlight=False)


async def _explain(what: str, run: str | None, store: str | None, policy: Path | None) -> dict[str, Any]:
    if run is None and store is None and is_run(what):
        what, run = await last_trained(what), what
    async with open_target(what, run, store) as (opened, target):
        return await explain_target(opened, target, policy)


def view(found: Facts) -> Group:
    """Return all panels of an explanation."""
    if found["what"] == "rollout":
        return Group(_head(found), *_rollout(found))
    token = [_token(found["token"], found["call"])] if found["what"] == "token" else []
    row = [_row(found)] if found.get("row") else []
    return Group(_head(found), *token, _call(found["call"]), _rewards(found), _credit(found), *row)


# -------------------------------------------------------------------------------------------------- panels
def _head(found: Facts) -> Panel:
    rollout, step, failure = found["rollout"], found["step"], found["failure"]
    trained = failure and failure["reward"] is not None
    becomes = f"trained with reward {_number(failure['reward'])}" if trained else "left out"
    same = "as it was trained" if step["as_trained"] else Text("NOT as it was trained", style="bold red")
    built = f"{step['step']}, built for policy version {_versions(step['version'])}: "
    lines: list[Line] = [
        (
            "rollout",
            f"{rollout['id']}  {rollout['status']}  sample {rollout['sample']} of task {rollout['task']}",
        ),
        ("reason", _styled(rollout["reason"], "red")),
        ("failure", failure and f"{failure['kind']}: {failure['text']} → {becomes}"),
        ("task", short(rollout["input"], 200) or "–"),
        ("step", Text.assemble(built, same) if step["step"] is not None else None),
        ("note", _styled(step["note"], "yellow")),
    ]
    return _panel(f"run {found['run'] or '–'}", "cyan", lines)


def _token(token: Facts, call: Facts) -> Panel:
    return _panel(f"token {call['id']}:{token['index']}", "yellow", _token_lines(token))


def _token_lines(token: Facts) -> Iterator[Line]:
    text = token["text"]
    if text is not None:
        before, after = token["around"]
        marked = (f"⟦{text}⟧", "bold black on yellow")
        yield "text", Text.assemble((before[-60:], "dim"), marked, (after[:60], "dim"))
    place = f"{_nth(token['index'] + 1)} of {token['of']} in the response (:{token['index']})"
    yield "token", f"{place}, id {token['id']}{f', {text!r}' if text is not None else ''}"
    then, now = token["logprob_then"], token["logprob_now"]
    said = "none" if then is None else f"{then:.6f}"
    yield "logprob then", f"{said}, by policy version {token['version']}"
    if now is None:
        yield "logprob now", _styled(token["now"], "yellow")
    else:
        moved = "" if then is None else f"  ({now - then:+.6f})"
        yield "logprob now", f"{now:.6f}{moved}  {token['now']}"
    for name, value in token["said"].items():
        apart = "" if then is None else f"  ({value - then:+.6f} to the policy then)"
        yield name, f"{value:.6f}{apart}"
    yield (
        "hint",
        _styled(token["hint"] and f"{short(token['hint'], 200)}  (the policy did not see it)", "italic"),
    )
    if not token["mask"]:
        yield "mask", _styled("0: not trained", "yellow")
        return
    for pull in token["pulls"]:
        yield pull["term"], pull["text"]
    yield "in sum", _styled(token["pulled"], "bold")
    if token["recorded"]:
        facts = ", ".join(f"{name} {_number(value)}" for name, value in token["recorded"].items())
        yield "of its step", f"{facts}  (over all tokens)"


def _call(call: Facts) -> Panel:
    tags = ", ".join(f"{k}={v}" for k, v in call["tags"].items() if k != "agent")
    finish = f", finished by {call['finish_reason']}" if call["finish_reason"] else ""
    version, model = _or(call["version"], "unknown"), call["model"] or "–"
    verdict = call["verdict"]
    reason = f": {verdict['reason']}" if verdict and verdict["reason"] else ""
    lines: list[Line] = [
        ("made by", f"{caller_name(call['tags'])}{f'  ({tags})' if tags else ''}"),
        ("policy", f"{call['policy']}, version {version}, asked for as {model}"),
        ("tokens", f"{_tokens(call)}{finish}, {call['milliseconds']} ms"),
        ("sampling", _pairs(call["sampling"]) or "–"),
        ("asked for", _pairs(call["asked"])),
        ("edited", _styled(call["edited"] and f"by the gateway: {_pairs(call['edited'])}", "yellow")),
        ("verdict", verdict and verdict["kind"] + reason),
        *(
            (Text(message["role"], style="dim"), Text(short(message["content"], 200) or " ", style="dim"))
            for message in call["messages"]
        ),
        ("answer", _styled(short(call["text"], 300) or "–", "italic")),
        ("error", _styled(call["error"], "red")),
    ]
    return _panel(f"call {call['id']}", "magenta", lines)


def _rewards(found: Facts) -> Panel:
    lines: list[Line] = []
    for reward in found["rewards"]:
        value = reward["defect"] or _number(reward["value"])
        late = f"  ({reward['unused']})" if reward["unused"] else ""
        from_ = f"  {_pairs(reward['attributes'])}" if reward["attributes"] else ""
        lines.append((reward["name"], f"{value}  of {reward['of']}{late}{from_}"))
    return _panel("rewards", "green", lines or [("none", "no reward was emitted; missing is not zero")])


def _credit(found: Facts) -> Panel:
    return _panel("credit", "blue", _credit_lines(found))


def _credit_lines(found: Facts) -> Iterator[Line]:
    credit, weight, left = found["credit"], found["weight"], found["left_out"]
    if credit:
        base, advantage = found["baseline"], found["advantage"]
        gamma = f", gamma {credit['gamma']:g}" if credit["rule"] == "discounted" else ""
        yield "credit", f"{_number(credit['value'])}  by rule {credit['rule']}{gamma}"
        yield "baseline", f"{_number(base['value'])}  by {base['name']} over {', '.join(base['group'])}"
        yield "", _members(base)
        yield "advantage", _advantage(credit, base, advantage)
    if weight:
        made = f"{_number(weight['value'])} = {weight['formula']}"
        yield "weight", f"{made}  (aggregation: {weight['aggregation']})"
    if left:
        yield "left out", _styled(f"{left['reason']}: {left['text']}", "bold yellow")


def _advantage(credit: Facts, base: Facts, advantage: Facts) -> str:
    if advantage["critic"]:
        return "the critic's, made during the step and not kept; credit is the return it learns"
    if edits := advantage.get("edits"):
        by = ", ".join(edits)
        return f"{_number(advantage['value'])} in the mean of its tokens, each of which has its own by {by}"
    if advantage["zero_reason"]:
        alone = "no other rollout of the group has a call here"
        same = "the rollouts of the group did the same"
        why = alone if advantage["zero_reason"] == "group-of-one" else same
        return f"0  by definition: {why}, so there is nothing to compare ({advantage['zero_reason']})"
    of = "std" if base["pool"] == base["group"] else f"spread of {', '.join(base['pool'])}"
    scaled = f" / {_number(advantage['scale'])} ({of} + 1e-6)" if advantage["scaled_by"] == "std" else ""
    left, right = _number(credit["value"]), _number(base["value"])
    return f"{_number(advantage['value'])} = ({left} − {right}){scaled}"


def _members(base: Facts) -> RenderableType:
    """Return a table of the compared values, one of each rollout."""
    table = TextTable(show_header=False, **_PLAIN)
    for member in base["members"][:_MOST]:
        style, mark = ("bold", "← this one") if member["this"] else ("dim", "")
        table.add_row(Text(member["rollout"], style=style), Text(_number(member["value"]), style=style), mark)
    if len(base["members"]) > _MOST:
        table.add_row(f"… and {len(base['members']) - _MOST} more")
    return table


def _row(found: Facts) -> Panel:
    row, token = found["row"], found.get("token")
    where = f"the response is [{row['start']}, {row['end']})"
    lines: list[Line] = [
        ("row", f"{row['id']}, {row['tokens']} tokens; {where}"),
        ("position", str(token["position"]) if token else None),
        ("staleness", f"{row['staleness']} versions" if row["staleness"] is not None else None),
        ("merge", found["merge"]["text"]),
    ]
    return _panel("row", "blue", lines)


def _rollout(found: Facts) -> Iterator[RenderableType]:
    attempts: list[Line] = []
    for a in found["attempts"]:
        seconds = f"  {a['seconds']:.2f} s" if a["seconds"] is not None else ""
        attempts.append((a["id"], f"{a['status']}{seconds}  {a['reason'] or ''}".rstrip()))
    yield _panel("attempts", "cyan", attempts)
    yield _rewards(found)
    if found["group"]:
        yield _panel(f"group {found['rollout']['group']}", "green", map(_member, found["group"]))
    yield _in_panel("calls", "magenta", _calls(found["calls"]))
    if ledger := found["ledger"]:
        out = "".join(f" + {n} {reason}" for reason, n in ledger["left_out"].items())
        lines: list[Line] = [
            ("ledger", f"{ledger['made']} made = {ledger['trained']} trained{out}"),
            ("merge failures", _pairs(ledger["merge_failures"])),
        ]
        for row in found["rows"]:
            context = f", {len(row['context'])} as context" if row["context"] else ""
            counts = f"{row['tokens']} tokens, {row['trained']} trained, {plural(len(row['calls']), 'call')}"
            lines.append(("row", f"{row['id']}: {counts}{context}"))
        yield _panel("training", "blue", lines)


def _member(member: Facts) -> Line:
    ended, failure = f"reward {_number(member['reward'])}", member["failure"]
    if failure:
        by_table = "left out" if member["reward"] is None else f"{ended} by the failure table"
        ended = f"{failure}: {by_table}"
    mark = ("  ← this one", "bold") if member["this"] else ""
    return member["rollout"], Text.assemble((ended, "yellow" if failure else ""), mark)


def _calls(calls: list[Facts]) -> Table:
    table = TextTable(header_style="bold", **_PLAIN)
    for name in ("call", "agent", "tokens", "v", "verdict", "fate"):
        table.add_column(name, overflow="fold", no_wrap=name == "call")
    for call in calls:
        if call["left_out"]:
            fate = Text(call["left_out"]["reason"], style="yellow")
        else:
            fate = Text(f"advantage {_number(call['advantage'])}", style="green")
        agent, version, verdict = call["agent"] or "–", str(_or(call["version"], "–")), call["verdict"] or "–"
        table.add_row(call["id"], agent, _tokens(call), version, verdict, fate)
    return table


# ------------------------------------------------------------------------------------------------- helpers
def _panel(title: str, colour: str, lines: Iterable[Line]) -> Panel:
    grid = TextTable.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, beside in lines:
        if beside:
            grid.add_row(label, beside)
    return _in_panel(title, colour, grid)


def _in_panel(title: str, colour: str, table: Table) -> Panel:
    return Panel(table, title=Text(title), title_align="left", border_style=colour)


def _styled(value: Any, style: str) -> Text | None:
    return Text(str(value), style=style) if value else None


def _nth(n: int) -> str:
    """Return ``1st``, ``2nd``, …"""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th") if n % 100 not in (11, 12, 13) else "th"
    return f"{n}{ending}"


def _number(value: float | None) -> str:
    return number(value, ".6g")


def _tokens(call: Facts) -> str:
    return f"{_or(call['prompt_tokens'], '?')} → {_or(call['response_tokens'], '?')}"


def _pairs(values: Facts | None) -> str:
    return ", ".join(f"{k} {v}" for k, v in (values or {}).items())


def _or(value: Any, other: str) -> Any:
    return other if value is None else value


def _versions(given: Any) -> str:
    """Return the version of the policy, or of each of several policies."""
    return ", ".join(f"{name} {v}" for name, v in given.items()) if isinstance(given, dict) else str(given)
