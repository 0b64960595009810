"""Draws pictures of README and pages from the code and from results; ``--check`` fails if they are stale.

    python scripts/pictures.py

``layers.svg``: the layers of the core, as the import contracts of pyproject.toml have them. ``forest.svg``:
how calls become rows, by the code that decides it, over calls that are made here. ``learned.svg``: README's
first result, from what each question earned (``bench/results/per_task``).
"""

from __future__ import annotations

import sys
import tomllib
from html import escape
from pathlib import Path

from agentlightning.credit import assign
from agentlightning.credit.forest import build_forest
from agentlightning.recipes import GRPO
from agentlightning.types import Call, Record, Reward, Rollout, RolloutStatus
from agl_dashboard.drawing.forest import BOX, NODE, Left, draw

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "images"
STYLE = """text{font:13px system-ui,sans-serif;fill:#1c2430}.dim{fill:#566173;font-size:12px}
.ground{fill:#fff}.box{fill:#eef2fb;stroke:#3f51b5}.line{fill:none;stroke:#3f51b5;stroke-width:1.5}
.branch .line,.break .line{stroke:#a15c00;stroke-dasharray:5 3}.branch .box,.start .box{fill:#fff}
.break .box{fill:#fff4e3;stroke:#a15c00}.left-out .box{fill:#f4f4f6;stroke:#8a93a3}
.why{fill:#8a4b00;font-size:12px}"""


def svg(width: float, height: float, about: str, parts: list[str]) -> str:
    """A picture that explains itself to those who cannot see it."""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    ground = f'<rect class="ground" width="{width:g}" height="{height:g}"/>'
    return "\n".join(
        [head, f"<title>{escape(about)}</title>", f"<style>{STYLE}</style>", ground, *parts, "</svg>", ""]
    )


def layers() -> str:
    """The layers of ``agentlightning``, the highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    floors: list[str] = next(one["layers"] for one in contracts if one["id"] == "floors")
    parts, width, step = list[str](), 520, 52
    for number, floor in enumerate(floors):
        y = 12 + number * step
        rooms = "   ".join(name.strip() for name in floor.split(":"))
        parts.append(f'<rect class="box" x="12" y="{y}" width="{width - 24}" height="34" rx="6"/>')
        place = f'x="28" y="{y + 22}" style="font-size:15px" xml:space="preserve"'
        parts.append(f"<text {place}>{escape(rooms)}</text>")
        if number + 1 < len(floors):
            parts.append(f'<path class="line" d="M{width / 2:g} {y + 34}v14m-4 -5l4 5l4 -5"/>')
    about = "Layers of the core: each imports from itself and from those below"
    return svg(width, 12 + len(floors) * step - 6, about, parts)


def call(name: str, number: int, agent: str, prompt: list[int], answer: list[int], error: str = "") -> Call:
    """A call of the rollout in the picture."""
    return Call(
        call_id=name,
        rollout_id="ro",
        attempt_id="at",
        sequence=number,
        prompt_ids=prompt,
        response_ids=answer,
        logprobs=[-0.7] * len(answer),
        tags={"agent": agent},
        status="error" if error else "ok",
        error=error or None,
    )


def rollout() -> list[Call]:
    """A solver of three turns, a critic who branches off its second, and a call that failed."""
    return [
        call("a", 0, "solver", [1, 2], [3, 4]),
        call("b", 1, "solver", [1, 2, 3, 4, 5], [6, 7]),
        call("c", 2, "critic", [1, 2, 3, 4, 8], [9]),
        call("d", 3, "solver", [1, 2, 3, 4, 5, 6, 7, 10], [11]),
        call("e", 4, "critic", [20, 21], [22, 23]),
        call("f", 5, "critic", [20, 21, 24], [], error="HTTP 500"),
    ]


def forest() -> str:
    """How the calls of :func:`rollout` become rows, and which is left out."""
    calls = rollout()
    whose = [
        Rollout(rollout_id=name, group_id="t", status=RolloutStatus.SUCCEEDED) for name in ("ro", "other")
    ]
    records = [
        Record(rollout=whose[0], calls=calls, rewards=[Reward(value=1.0)]),
        Record(rollout=whose[1], rewards=[Reward(value=0.0)]),
    ]
    batch = assign(records, GRPO())
    trained = {s.call_id for row in batch.rows for s in row.segments if s.trained}
    (ledger,) = (one for one in batch.ledgers if one.rollout_id == "ro")
    (reason,) = ledger.left_out
    left = [Left(one, reason, reason) for one in calls if one.call_id not in trained]
    drawing = draw(build_forest([one for one in calls if one.call_id in trained]), left)
    parts = [f'<g class="{one.kind}"><path class="line" d="{one.path}"/></g>' for one in drawing.edges]
    for node in drawing.nodes:
        box = f'x="{node.x:g}" y="{node.y:g}" width="{NODE:g}" height="{BOX:g}" rx="7"'
        name = f'<text x="{node.x + 10:g}" y="{node.y + 17:g}">{escape(node.name)}</text>'
        size = (
            f'<text class="dim" x="{node.x + 10:g}" y="{node.y + 33:g}">{escape(node.tokens)} tokens</text>'
        )
        parts.append(f'<g class="{node.kind}"><rect class="box" {box}/>{name}{size}</g>')
        if node.kind == "left-out":
            place = f'x="{node.x + NODE + 10:g}" y="{node.y + 24:g}"'
            parts.append(f'<text class="why" {place}>not trained: {escape(reason)}</text>')
    parts += key(drawing.height + 18)
    rows = len(batch.rows)
    about = (
        f"{len(calls)} calls of a rollout: {len(trained)} are trained, in {rows} rows; one failed and is not"
    )
    return svg(drawing.width + 60, drawing.height + 78, about, parts)


def key(y: float) -> list[str]:
    """What the boxes and lines of :func:`forest` mean, in two lines from ``y`` on."""
    meanings = {
        "start": "begins a row",
        "extends": "goes on with the row",
        "branch": "begins one by a branch",
        "left-out": "is not trained",
    }
    parts = []
    for number, (kind, meaning) in enumerate(meanings.items()):
        x, at = 12 + 230 * (number % 2), y + 28 * (number // 2)
        line = f'<path class="line" d="M{x} {at + 9:g}h14"/>' if kind in ("extends", "branch") else ""
        box = f'<rect class="box" x="{x + 14}" y="{at:g}" width="30" height="18" rx="4"/>'
        said = f'<text x="{x + 54}" y="{at + 14:g}">{meaning}</text>'
        parts.append(f'<g class="{kind} key">{line}{box}{said}</g>')
    return parts


def learned() -> str:
    """What the pretrained model earned on questions about databases that it never saw, before and after."""
    sys.path.insert(0, str(ROOT / "bench"))
    import router_plot

    tasks, found = router_plot.chosen("halves")
    rows = {
        "before training": (found["before"][0], "#a3acb8"),
        "best script": (found["letters"][0], "#c98a00"),
        "after training": (found["after"][0], "#3f51b5"),
    }
    scores = {name: router_plot.score(rewards, tasks) for name, (rewards, _) in rows.items()}
    before, after = (scores[name]["reward"] for name in ("before training", "after training"))
    databases = len({task["answer"] for task in tasks})
    parts = [
        f'<text x="24" y="78" style="font-size:64px;font-weight:700">{before:.2f} → {after:.2f}</text>',
        f'<text class="dim" style="font-size:15px" x="26" y="110">share of {len(tasks):,} real questions '
        f"that SmolLM2-135M sends to the right database of four</text>",
        f'<text class="dim" style="font-size:15px" x="26" y="131">{databases} databases that it was not '
        "trained on · GRPO on two CPU cores · lines: 95 % intervals</text>",
    ]
    left, width = 150, 540
    for number, (name, (_, colour)) in enumerate(rows.items()):
        y, (low, high) = 156 + 40 * number, scores[name]["ci"]
        reward = scores[name]["reward"]
        parts += [
            f'<text style="font-size:15px" x="26" y="{y + 19}">{name}</text>',
            f'<rect x="{left}" y="{y}" width="{width * reward:.1f}" height="28" rx="4" fill="{colour}"/>',
            f'<path d="M{left + width * low:.1f} {y + 14}H{left + width * high:.1f}" '
            'stroke="#1c2430" stroke-width="1.5"/>',
            f'<text style="font-size:16px;font-weight:600" x="{left + width * high + 10:.1f}" '
            f'y="{y + 20}">{reward:.2f}</text>',
        ]
    about = f"Right databases before training {before:.3f}, after training {after:.3f}"
    return svg(720, 288, about, parts)


def main() -> int:
    """Write, or compare."""
    stale = []
    for name, text in {"layers.svg": layers(), "forest.svg": forest(), "learned.svg": learned()}.items():
        if "--check" not in sys.argv:
            (FOLDER / name).write_text(text, encoding="utf-8")
        elif not (FOLDER / name).exists() or (FOLDER / name).read_text(encoding="utf-8") != text:
            stale.append(name)
    if stale:
        print(f"{', '.join(stale)}: stale, run python scripts/pictures.py", file=sys.stderr)
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
