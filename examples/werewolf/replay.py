"""A game to look at, in the terminal or as one HTML page that needs nothing else.

``python -m werewolf.replay --preset zh12 --deal 5 --html game.html`` plays a game of local players; ``--store
STORE --rollout ID`` shows a recorded one of a run (its task had ``"record": true``). Lines that not everybody
knew are marked, with the seats that did.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from rich.console import Console
from rich.table import Table
from rich.text import Text

from werewolf.engine import Event, Game, Happening, Role, Side
from werewolf.players.local import NAMES, local_player
from werewolf.record import KEY, record
from werewolf.table import play_local
from werewolf.wording import Wording, wording

DEATHS = frozenset({Happening.DAWN, Happening.EXILED, Happening.SHOT, Happening.EXPLODED})


def story(game: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded game as titles and lines, for either view."""
    words = wording(game["language"])
    dead, roles = game["dead"], game["roles"]
    seats = [
        {
            "seat": int(seat),
            "name": words.seat(int(seat)),
            "role": words.role(role),
            "side": Role(role).side.value,
            "player": game["players"][seat],
            "dead": dead.get(seat, ""),
        }
        for seat, role in roles.items()
    ]
    outcome = game["outcome"]
    return {
        "language": game["language"],
        "title": f"{game['preset']} · {outcome['winner'] or 'nobody'} won",
        "summary": f"{len(seats)} seats, {outcome['days']} days, {len(game['events'])} events",
        "seats": seats,
        "parts": _parts(game["events"], words, len(seats)),
        "decisions": _decisions(game["decisions"], words),
    }


def _parts(events: list[dict[str, Any]], words: Wording, seats: int) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for raw in events:
        event = _event(raw)
        text = words.event(event)
        if not text:
            continue
        title = f"{event.phase} {event.day}"
        if not parts or parts[-1]["title"] != title:
            parts.append({"title": title, "lines": []})
        private = event.audience is not None and len(event.audience) < seats
        sums = [(words.seat(int(seat)), f"{n:g}") for seat, n in event.data.get("sums", {}).items()]
        fatal = event.what in DEATHS and (event.what is not Happening.DAWN or bool(event.data["seats"]))
        to = words.seats(sorted(event.audience or ())) if private else ""
        parts[-1]["lines"].append({"text": text, "to": to, "sums": sums, "death": fatal})
    return parts


def _event(raw: Mapping[str, Any]) -> Event:
    data = dict(raw["data"])
    if "ballots" in data:
        data["ballots"] = {int(voter): choice for voter, choice in data["ballots"].items()}
    audience = None if raw["audience"] is None else frozenset(raw["audience"])
    return Event(
        what=Happening(raw["what"]),
        day=raw["day"],
        phase=raw["phase"],
        seat=raw["seat"],
        target=raw["target"],
        data=data,
        audience=audience,
    )


def _decisions(decisions: list[dict[str, Any]], words: Wording) -> list[dict[str, Any]]:
    """Per seat: decisions, calls, decisions a default stands in for, and the sum of the calls' rewards."""
    rows: dict[int, dict[str, Any]] = {}
    for one in decisions:
        row = rows.setdefault(
            one["seat"],
            {"name": words.seat(one["seat"]), "decisions": 0, "calls": 0, "invalid": 0, "reward": 0.0},
        )
        row["decisions"] += 1
        row["calls"] += one["calls"]
        row["invalid"] += not one["valid"]
        row["reward"] += one["reward"]
    return [{**rows[seat], "reward": f"{rows[seat]['reward']:g}"} for seat in sorted(rows)]


def html(game: Mapping[str, Any]) -> str:
    """One page, without a reference to anything outside it. What players said is escaped."""
    folder = Path(__file__).resolve().parent
    environment = Environment(loader=FileSystemLoader(folder), autoescape=True)
    return environment.get_template("replay.html.jinja").render(**story(game))


def show(game: Mapping[str, Any], console: Console) -> None:
    """The same in the terminal: private lines are dim, with the seats that know them."""
    told = story(game)
    console.print(Text(told["title"], style="bold"), Text(told["summary"], style="dim"))
    table = Table(box=None, pad_edge=False)
    for heading in ("seat", "role", "player", "died by"):
        table.add_column(heading, style="dim" if heading == "player" else "")
    for seat in told["seats"]:
        style = "red" if seat["side"] == Side.WOLVES.value else "green"
        table.add_row(seat["name"], Text(seat["role"], style=style), seat["player"], seat["dead"])
    console.print(table)
    for part in told["parts"]:
        console.rule(part["title"], align="left")
        for line in part["lines"]:
            text = Text(
                line["text"], style="dim italic" if line["to"] else "bold red" if line["death"] else ""
            )
            if line["to"]:
                text.append(f"  → {line['to']}", style="magenta")
            console.print(text, soft_wrap=True)
    for row in told["decisions"]:
        console.print(
            Text(" · ".join(f"{key} {value}" for key, value in row.items()), style="dim"), soft_wrap=True
        )


def local_game(preset: str, deal: int, wolves: str, town: str, language: str) -> dict[str, Any]:
    """A recorded game of local players."""
    game, words = Game(preset, deal), wording(language)
    kinds = {seat: wolves if r.side is Side.WOLVES else town for seat, r in game.state.roles.items()}
    play_local(game, {seat: local_player(kind, game, seat, deal, words) for seat, kind in kinds.items()})
    return record(game, kinds, language=language)


async def recorded_game(store: str, rollout: str) -> dict[str, Any]:
    """The game that a rollout of a run left."""
    from agentlightning import open_store
    from agentlightning.capture.emit import BODY
    from agentlightning.types import UsageError

    opened = open_store(store, read_only=True)
    try:
        for span in await opened.spans(rollout):
            body = span.attributes.get(BODY)
            if isinstance(body, dict) and KEY in body:
                found: dict[str, Any] = body[KEY]
                return found
    finally:
        await opened.close()
    raise UsageError(f'rollout {rollout} left no game; was there "record": true in its task?')


def main() -> None:
    """Show one game."""
    parser = argparse.ArgumentParser(prog="python -m werewolf.replay", description=__doc__)
    parser.add_argument("--preset", default="zh12")
    parser.add_argument("--deal", type=int, default=1)
    parser.add_argument("--wolves", default="scripted", choices=NAMES)
    parser.add_argument("--town", default="scripted", choices=NAMES)
    parser.add_argument("--language", default="zh")
    parser.add_argument("--store", help="file of a run's store, for a recorded game")
    parser.add_argument("--rollout", help="its rollout's id")
    parser.add_argument("--html", type=Path, help="write a page instead")
    given = parser.parse_args()
    if (given.store is None) != (given.rollout is None):
        parser.error("--store and --rollout belong together")
    if given.store:
        game = asyncio.run(recorded_game(given.store, given.rollout))
    else:
        game = local_game(given.preset, given.deal, given.wolves, given.town, given.language)
    if given.html:
        given.html.write_text(html(game), encoding="utf-8")
        print(given.html)
    else:
        show(game, Console())


if __name__ == "__main__":
    main()
