"""The board of a game in a few dozen Chinese words: what the small policy reads, and the answers it may give.

Invariant: every word is one of ``WORDS``; an answer is one word, or for a statement two: what is said, and of
whom. The board holds facts that the seat knows, and no advice.
"""

from __future__ import annotations

from werewolf.engine import PRESETS, Ask, Choice, Kind, Rules, Side, Statement
from werewolf.players.knowledge import Knowledge

SYSTEM = "狼人杀"
"""The whole system prompt of the small policy."""
_SEATS = range(1, PRESETS["mini7"].seats + 1)
_NAMES = {seat: f"{seat}号" for seat in _SEATS}
_CLAIMS = {"accuse": "怀疑", "wolf": "称狼", "good": "称好"}
_ROLES = {"villager": "村民", "seer": "预言家", "witch": "女巫", "wolf": "狼人"}
_TASKS = {
    Kind.WOLF_VOTE: "袭击谁",
    Kind.SPEECH: "说什么",
    Kind.VOTE: "投谁",
    Kind.CHECK: "查谁",
    Kind.SAVE: "救不救",
    Kind.POISON: "毒谁",
}
_WORDS = {"skip": "不用", "yes": "是", "no": "否"}

WORDS: tuple[str, ...] = (
    SYSTEM,
    *_NAMES.values(),
    *_CLAIMS.values(),
    "过",
    *_ROLES.values(),
    *_TASKS.values(),
    *_WORDS.values(),
    *(f"第{day}天" for day in range(1, 8)),
    *("身份", "队友", "存活", "夜死", "放逐", "自称", "查", "提议", "被袭", "狼", "好", "，"),
)
"""Everything that a board or an answer is written with."""


class NoBoard(ValueError):
    """The small policy does not play this preset."""


def check_preset(rules: Rules) -> None:
    """Raise :class:`NoBoard` unless there are words for all of a preset."""
    if rules.name not in ("mini5", "mini7"):
        raise NoBoard(
            f"the board has words for mini5 and mini7, not for {rules.name!r}; use players of kind model"
        )


def board(knows: Knowledge, ask: Ask) -> str:
    """The state of the game as ``knows.seat`` sees it, and what is asked."""
    parts = [f"第{min(ask.day, 7)}天", _TASKS[ask.kind], "身份", _NAMES[knows.seat], _ROLES[knows.role.value]]
    parts += _listed("队友", [seat for seat in knows.team if seat != knows.seat])
    parts += _listed("存活", knows.living)
    parts += _listed("夜死", knows.died_at_night)
    parts += _listed("放逐", [seat for seat in knows.dead if seat not in knows.died_at_night])
    for seer, said in knows.seers.items():
        parts += [*_listed("自称", [seer]), *_found(said)]
    if knows.checks:
        parts += ["，", "查", *_found(knows.checks)]
    parts += _listed("提议", list(knows.proposals.values())) if ask.kind is Kind.WOLF_VOTE else []
    parts += _listed("被袭", [knows.victim]) if knows.victim and ask.phase == "night" else []
    return "".join(parts)


def answers(ask: Ask) -> dict[str, Choice]:
    """Words → choice, for every legal choice."""
    return {_word(option): option for option in ask.options}


def _listed(title: str, seats: list[int]) -> list[str]:
    return ["，", title, *(_NAMES[seat] for seat in seats)] if seats else []


def _found(said: dict[int, Side]) -> list[str]:
    return [
        word for seat, side in said.items() for word in (_NAMES[seat], "狼" if side is Side.WOLVES else "好")
    ]


def _word(option: Choice) -> str:
    if isinstance(option, Statement):
        return "过" if option.claim == "pass" else f"{_CLAIMS[option.claim]}{_NAMES[option.seat]}"
    return _NAMES[option] if isinstance(option, int) else _WORDS[option]
