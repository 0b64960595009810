"""Contract: ``uninstrument`` undoes the adapter's patches and keeps those of others."""

from __future__ import annotations

from typing import Any

import wrapt

from agentlightning import semconv
from agentlightning.capture import installed
from agl_testing import ScriptedModelServer
from agl_testing.contract.hooks import AdapterHooks, add
from agl_testing.contract.recording import Recording, assert_exact
from agl_testing.contract.tally import TALLY


class LeavingContract(AdapterHooks):
    """Tests of ``uninstrument``."""

    async def test_nothing_is_left_after_uninstrument(self, server: ScriptedModelServer, shared: Any) -> None:
        self.instrumentor().uninstrument()
        before = [vars(owner).get(name) for owner, name in self.patched()]
        self.instrumentor().instrument()
        during = [vars(owner).get(name) for owner, name in self.patched()]
        assert all(a is not b for a, b in zip(before, during, strict=True))
        self.instrumentor().uninstrument()
        after = [vars(owner).get(name) for owner, name in self.patched()]
        assert all(a is b for a, b in zip(before, after, strict=True))
        assert not installed()
        recording = Recording("after", server.url)
        with recording.active():
            await self.tool_agent(shared, "how much?", add, False)
        TALLY.aside(server.log)  # the adapter was off
        assert recording.spans == []
        assert semconv.HEADER_ATTEMPT not in server.log[0].headers

    async def test_foreign_wrappers_above_ours_survive(
        self, server: ScriptedModelServer, shared: Any
    ) -> None:
        seen: list[str] = []

        def foreign(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            seen.append(getattr(wrapped, "__name__", "?"))
            return wrapped(*args, **kwargs)

        self.instrumentor().uninstrument()
        originals = [(owner, name, vars(owner).get(name, self)) for owner, name in self.patched()]
        self.instrumentor().instrument()
        self.prepare()
        for owner, name in self.patched():
            wrapt.wrap_function_wrapper(owner, name, foreign)
        recording = Recording("foreign", server.url)
        try:
            with recording.active():
                await self.tool_agent(shared, "how much?", add, False)
            assert len(recording.calls) == 2 and seen
            assert_exact(recording, server.log)
            self.instrumentor().uninstrument()
            seen.clear()
            with recording.active():
                await self.tool_agent(shared, "how much?", add, False)
            TALLY.aside(server.log[2:])
            assert len(recording.calls) == 2 and seen  # our wrapper is off, the foreign one still runs
        finally:
            for owner, name, original in originals:
                if original is self:  # it was inherited
                    delattr(owner, name)
                else:
                    setattr(owner, name, original)
