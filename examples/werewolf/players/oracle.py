"""Players that see all cards: they measure what there is to gain, and are no opponents for training."""

from __future__ import annotations

from werewolf.engine import Answer, Ask, Game, Kind, Role, Side, Statement
from werewolf.engine.asks import PASS, SKIP
from werewolf.players.scripted import ScriptedPlayer


class OraclePlayer(ScriptedPlayer):
    """Plays by the script, and knows every role: town votes for wolves, wolves strike whom it hurts most."""

    game: Game

    def watch(self, game: Game) -> OraclePlayer:
        """See the cards of ``game``."""
        self.game = game
        return self

    def wish(self, ask: Ask, seats: list[int]) -> Answer:
        if not self.wolf:
            if ask.kind in (Kind.CHECK, Kind.POISON, Kind.VOTE, Kind.SHOOT):
                wolves = self._of(Side.WOLVES, seats)
                return wolves[0] if wolves else SKIP
            return super().wish(ask, seats)
        if ask.kind is Kind.WOLF_VOTE and self._of(Side.TOWN, seats):
            return self._worth(self.prey(seats))
        return super().wish(ask, seats)

    def statement(self, ask: Ask) -> Statement:
        if self.wolf or ask.kind in (Kind.WOLF_TALK, Kind.LAST_WORDS):
            return super().statement(ask)
        wolves = self._of(Side.WOLVES, self.knows.others)
        return Statement("accuse", wolves[0]) if wolves else PASS

    def _lie(self) -> Statement:
        """The seer is called a wolf before it has spoken."""
        said = super()._lie()
        told = self.knows.seers.get(self.seat, {})
        fresh = [s for s in self._of(Side.TOWN, self.knows.others) if s not in told]
        return Statement("wolf", self._worth(fresh)) if said != PASS and fresh else said

    def _of(self, side: Side, seats: list[int]) -> list[int]:
        return [s for s in seats if self.game.state.roles[s].side is side]

    def _worth(self, seats: list[int]) -> int:
        """Whom the town would miss most."""
        roles = self.game.state.roles
        return min(seats, key=lambda s: (_WORTH.get(roles[s], len(_WORTH)), s))


_WORTH = {Role.SEER: 0, Role.WITCH: 1, Role.GUARD: 2, Role.HUNTER: 3}
