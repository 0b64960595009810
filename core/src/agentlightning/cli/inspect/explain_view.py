"""Panels for the JSON of :mod:`agentlightning.audit.explanation.explain`, the number first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agentlightning.types.select import caller_name

Facts = dict[str, Any]
_MOST = 12
"""Members of a group that are listed."""


def view(found: Facts) -> Group:
    """All panels of an explanation."""
    parts: list[RenderableType] = [_head(found)]
    if found["what"] == "rollout":
        return Group(*parts, *_rollout(found))
    if found["what"] == "token":
        parts.append(_token(found["token"], found["call"]))
    parts += [_call(found["call"]), _rewards(found), _credit(found)]
    if found.get("row"):
        parts.append(_row(found))
    return Group(*parts)


# -------------------------------------------------------------------------------------------------- panels
def _head(found: Facts) -> Panel:
    rollout, step = found["rollout"], found["step"]
    grid = _grid()
    grid.add_row(
        "rollout",
        f"{rollout['id']}  {rollout['status']}  sample {rollout['sample']} of task {rollout['task']}",
    )
    if rollout["reason"]:
        grid.add_row("reason", Text(str(rollout["reason"]), style="red"))
    if found["failure"]:
        failure = found["failure"]
        becomes = (
            "left out" if failure["reward"] is None else f"trained with reward {_number(failure['reward'])}"
        )
        grid.add_row("failure", f"{failure['kind']}: {failure['text']} → {becomes}")
    grid.add_row("task", _short(rollout["input"], 200))
    if step["step"] is not None:
        same = "as it was trained" if step["as_trained"] else Text("NOT as it was trained", style="bold red")
        grid.add_row(
            "step",
            Text.assemble(f"{step['step']}, built for policy version {_versions(step['version'])}: ", same),
        )
    if step["note"]:
        grid.add_row("note", Text(step["note"], style="yellow"))
    return _panel(f"run {found['run'] or '–'}", grid, "cyan")


def _token(token: Facts, call: Facts) -> Panel:
    grid = _grid()
    if token["text"] is not None:
        before, after = token["around"]
        grid.add_row(
            "text",
            Text.assemble(
                (before[-60:], "dim"), (f"⟦{token['text']}⟧", "bold black on yellow"), (after[:60], "dim")
            ),
        )
    which = f", {token['text']!r}" if token["text"] is not None else ""
    place = f"{_nth(token['index'] + 1)} of {token['of']} in the response (:{token['index']})"
    grid.add_row("token", f"{place}, id {token['id']}{which}")
    then = "none" if token["logprob_then"] is None else f"{token['logprob_then']:.6f}"
    grid.add_row("logprob then", f"{then}, by policy version {token['version']}")
    if token["logprob_now"] is None:
        grid.add_row("logprob now", Text(str(token["now"]), style="yellow"))
    else:
        change = token["logprob_now"] - token["logprob_then"] if token["logprob_then"] is not None else None
        moved = "" if change is None else f"  ({change:+.6f})"
        grid.add_row("logprob now", f"{token['logprob_now']:.6f}{moved}  {token['now']}")
    if token["mask"]:
        for pull in token["pulls"]:
            grid.add_row(pull["term"], pull["text"])
        grid.add_row("in sum", Text(token["pulled"], style="bold"))
        if token["recorded"]:
            facts = ", ".join(f"{name} {_number(value)}" for name, value in token["recorded"].items())
            grid.add_row("of its step", f"{facts}  (over all tokens)")
    else:
        grid.add_row("mask", Text("0: not trained", style="yellow"))
    return _panel(f"token {call['id']}:{token['index']}", grid, "yellow")


def _call(call: Facts) -> Panel:
    grid = _grid()
    tags = ", ".join(f"{k}={v}" for k, v in call["tags"].items() if k != "agent")
    grid.add_row("made by", f"{caller_name(call['tags'])}{f'  ({tags})' if tags else ''}")
    grid.add_row(
        "policy",
        f"{call['policy']}, version {_or(call['version'], 'unknown')}, asked for as {call['model'] or '–'}",
    )
    finish = f", finished by {call['finish_reason']}" if call["finish_reason"] else ""
    grid.add_row("tokens", f"{_tokens(call)}{finish}, {call['milliseconds']} ms")
    grid.add_row("sampling", _pairs(call["sampling"]) or "–")
    if call["asked"]:
        grid.add_row("asked for", _pairs(call["asked"]))
    if call["edited"]:
        grid.add_row("edited", Text(f"by the gateway: {_pairs(call['edited'])}", style="yellow"))
    if call["verdict"]:
        verdict = call["verdict"]
        grid.add_row("verdict", verdict["kind"] + (f": {verdict['reason']}" if verdict["reason"] else ""))
    for message in call["messages"]:
        grid.add_row(Text(message["role"], style="dim"), Text(_short(message["content"], 200), style="dim"))
    grid.add_row("answer", Text(_short(call["text"], 300) or "–", style="italic"))
    if call["error"]:
        grid.add_row("error", Text(str(call["error"]), style="red"))
    return _panel(f"call {call['id']}", grid, "magenta")


def _rewards(found: Facts) -> Panel:
    grid = _grid()
    for reward in found["rewards"]:
        value = reward["defect"] if reward["defect"] else _number(reward["value"])
        late = f"  ({reward['unused']})" if reward["unused"] else ""
        from_ = f"  {_pairs(reward['attributes'])}" if reward["attributes"] else ""
        grid.add_row(reward["name"], f"{value}  of {reward['of']}{late}{from_}")
    if not found["rewards"]:
        grid.add_row("none", "no reward was emitted; missing is not zero")
    return _panel("rewards", grid, "green")


def _credit(found: Facts) -> Panel:
    grid = _grid()
    if found["credit"]:
        credit, base, advantage = found["credit"], found["baseline"], found["advantage"]
        own = credit["rule"] == "discounted" and not found["advantage"]["critic"]
        gamma = f", gamma {credit['gamma']:g}" if own else ""
        grid.add_row("credit", f"{_number(credit['value'])}  by rule {credit['rule']}{gamma}")
        grid.add_row(
            "baseline", f"{_number(base['value'])}  by {base['name']} over {', '.join(base['group'])}"
        )
        grid.add_row("", _members(base))
        grid.add_row("advantage", _advantage(credit, base, advantage))
    if found["weight"]:
        weight = found["weight"]
        grid.add_row(
            "weight",
            f"{_number(weight['value'])} = {weight['formula']}  (aggregation: {weight['aggregation']})",
        )
    if found["left_out"]:
        left = found["left_out"]
        grid.add_row("left out", Text(f"{left['reason']}: {left['text']}", style="bold yellow"))
    return _panel("credit", grid, "blue")


def _advantage(credit: Facts, base: Facts, advantage: Facts) -> str:
    if advantage["critic"]:
        return "the critic's, made during the step and not kept; credit is the return it learns"
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
    """The values that were compared, one a rollout."""
    table = _Plain(box=None, show_header=False, padding=(0, 2, 0, 0))
    for member in base["members"][:_MOST]:
        style = "bold" if member["this"] else "dim"
        mark = "← this one" if member["this"] else ""
        table.add_row(Text(member["rollout"], style=style), Text(_number(member["value"]), style=style), mark)
    if len(base["members"]) > _MOST:
        table.add_row(f"… and {len(base['members']) - _MOST} more")
    return table


def _row(found: Facts) -> Panel:
    row = found["row"]
    grid = _grid()
    grid.add_row(
        "row", f"{row['id']}, {row['tokens']} tokens; the response is [{row['start']}, {row['end']})"
    )
    if found.get("token"):
        grid.add_row("position", str(found["token"]["position"]))
    if row["staleness"] is not None:
        grid.add_row("staleness", f"{row['staleness']} versions")
    grid.add_row("merge", found["merge"]["text"])
    return _panel("row", grid, "blue")


def _rollout(found: Facts) -> Iterable[RenderableType]:
    attempts = _grid()
    for a in found["attempts"]:
        seconds = f"  {a['seconds']:.2f} s" if a["seconds"] is not None else ""
        attempts.add_row(a["id"], f"{a['status']}{seconds}  {a['reason'] or ''}".rstrip())
    yield _panel("attempts", attempts, "cyan")
    yield _rewards(found)
    if found["group"]:
        yield _panel(f"group {found['rollout']['group']}", _group(found["group"]), "green")
    yield _panel("calls", _calls(found["calls"]), "magenta")
    if found["ledger"]:
        ledger = found["ledger"]
        grid = _grid()
        out = "".join(f" + {n} {reason}" for reason, n in ledger["left_out"].items())
        grid.add_row("ledger", f"{ledger['made']} made = {ledger['trained']} trained{out}")
        if ledger["merge_failures"]:
            grid.add_row("merge failures", _pairs(ledger["merge_failures"]))
        for row in found["rows"]:
            context = f", {len(row['context'])} as context" if row["context"] else ""
            counts = f"{row['tokens']} tokens, {row['trained']} trained, {_count(row['calls'], 'call')}"
            grid.add_row("row", f"{row['id']}: {counts}{context}")
        yield _panel("training", grid, "blue")


def _group(members: list[Facts]) -> Table:
    grid = _grid()
    for member in members:
        ended = f"reward {_number(member['reward'])}"
        if member["failure"]:
            by_table = "left out" if member["reward"] is None else f"{ended} by the failure table"
            ended = f"{member['failure']}: {by_table}"
        mark = Text("  ← this one", style="bold") if member["this"] else ""
        grid.add_row(member["rollout"], Text.assemble((ended, "yellow" if member["failure"] else ""), mark))
    return grid


def _calls(calls: list[Facts]) -> Table:
    table = _Plain(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("call", "agent", "tokens", "v", "verdict", "fate"):
        table.add_column(name, overflow="fold", no_wrap=name == "call")
    for call in calls:
        if call["left_out"]:
            fate = Text(call["left_out"]["reason"], style="yellow")
        else:
            fate = Text(f"advantage {_number(call['advantage'])}", style="green")
        tokens = _tokens(call)
        table.add_row(
            call["id"],
            call["agent"] or "–",
            tokens,
            str(_or(call["version"], "–")),
            call["verdict"] or "–",
            fate,
        )
    return table


# ------------------------------------------------------------------------------------------------- helpers
class _Plain(Table):
    """A table whose text is text: what a model or an agent said is never read as rich's markup."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def _grid() -> Table:
    grid = _Plain.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def _panel(title: str, inside: RenderableType, colour: str) -> Panel:
    return Panel(inside, title=Text(title), title_align="left", border_style=colour)


def _nth(n: int) -> str:
    """``1st``, ``2nd``, …"""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th") if n % 100 not in (11, 12, 13) else "th"
    return f"{n}{ending}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"


def _tokens(call: Facts) -> str:
    return f"{_or(call['prompt_tokens'], '?')} → {_or(call['response_tokens'], '?')}"


def _pairs(values: Facts) -> str:
    return ", ".join(f"{k} {v}" for k, v in values.items())


def _count(items: list[Any], word: str) -> str:
    return f"{len(items)} {word}{'' if len(items) == 1 else 's'}"


def _or(value: Any, other: str) -> Any:
    return other if value is None else value


def _short(value: Any, most: int) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _versions(given: Any) -> str:
    """The version of the policy, or of each of several."""
    return ", ".join(f"{name} {v}" for name, v in given.items()) if isinstance(given, dict) else str(given)
