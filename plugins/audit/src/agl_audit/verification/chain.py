"""Read a run's chain, check it, and find the links that are still valid.

Invariant: a link that does not match its head is named, and nothing is compared with it; a link that does
not follow the previous one is named. Of the steps that a resumed run repeated, only the later link is valid.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agentlightning.credit.digest import KEY_VARIABLE, compute_head, signed_by
from agentlightning.store.pages import pages
from agentlightning.types import AuditLink
from agl_audit.run import OpenRun
from agl_audit.verification.differences import Difference, make_difference

MIN_HEAD_DIGITS = 16
"""Digits that suffice to identify a head."""


@dataclass(slots=True)
class Chain:
    """The links of a run, and the valid ones by subject."""

    links: list[AuditLink] = field(default_factory=list)
    found: list[Difference] = field(default_factory=list)
    """Differences in the chain itself."""
    start: AuditLink | None = None
    """The link of the run's start or last resume."""
    first_step: int = 0
    """The first step that has links: a run that began without a chain may have been resumed with one."""
    steps: dict[tuple[int, str], AuditLink] = field(default_factory=dict)
    evaluations: dict[str, AuditLink] = field(default_factory=dict)
    in_file_order: list[AuditLink] = field(default_factory=list)
    """Evaluations in the order of the run's file, superseded ones included."""
    checkpoints: dict[str, AuditLink] = field(default_factory=dict)
    end: AuditLink | None = None
    waiting: set[int] = field(default_factory=set)
    """Steps that a resumed run has not repeated yet."""
    tampered: set[tuple[str, str]] = field(default_factory=set)
    """(kind, name) of edited links, which nothing is compared with."""

    @property
    def head(self) -> str:
        """The head of the last link."""
        return self.links[-1].head if self.links else ""

    def report(self, what: str, kind: str = "chain") -> None:
        """Note a difference in the chain itself."""
        self.found.append(make_difference(kind, what, of="the chain"))


async def read_chain(run: OpenRun, key: str | None, head: str | None) -> Chain:
    """Return the chain of a run. ``key`` must have signed it; ``head`` must be its last head."""
    links: list[AuditLink] = []
    try:
        async for page in pages(run.store.query_links, run.run_id):
            links += page
    except Exception as error:
        what = f"the chain cannot be read behind link {len(links) - 1} ({type(error).__name__}: {error})"
        chain = Chain(links=links)
        chain.report(f"{what}: damaged after training")
        return chain
    chain = Chain(links=links)
    _check_chain(chain)
    if key and links:
        _check_signatures(chain, key)
    if head is not None:
        _check_head(chain, head)
    for link in links:
        if (link.kind, link.name) not in chain.tampered:
            _apply(chain, link)
    return chain


def _check_chain(chain: Chain) -> None:
    """Check that every link matches its head and follows the previous one."""
    before: AuditLink | None = None
    for link in chain.links:
        expected = before.number + 1 if before else 0
        if link.head != compute_head(link):
            chain.report(f"{_name(link)} was edited: its head was made of something else")
            chain.tampered.add((link.kind, link.name))
        if link.number != expected:
            last = f"{expected}" if link.number == expected + 1 else f"{expected} to {link.number - 1}"
            chain.report(f"link {last} is missing (removed after training)")
        elif link.previous != (before.head if before else ""):
            chain.report(
                f"{_name(link)} was made after another link than the one before it: one was replaced"
            )
        before = link


def _check_signatures(chain: Chain, key: str) -> None:
    wrong = [link for link in chain.links if not signed_by(link, key)]
    if wrong:
        bare = all(link.signature is None for link in wrong)
        how = "not signed" if bare else f"not signed with the key in {KEY_VARIABLE}"
        what = f"{len(wrong)} of its {len(chain.links)} links, the first being {_name(wrong[0])}, are {how}"
        chain.report(f"{what}: made without that key, or made anew after training", "signature")


def _check_head(chain: Chain, head: str) -> None:
    head = head.strip().lower()
    named = [link for link in chain.links if len(head) >= MIN_HEAD_DIGITS and link.head.startswith(head)]
    if not named:
        given, last = head or "(empty)", chain.head or "none"
        chain.report(f"the chain does not hold the given head {given}; it ends with {last}", "head")
    elif named[-1] is not chain.links[-1]:
        after = len(chain.links) - 1 - named[0].number
        what = f"the given head is that of {_name(named[0])}; {after} links were added behind it"
        chain.report(what, "head")


def _apply(chain: Chain, link: AuditLink) -> None:
    """Make a link the valid one of its subject; a resume invalidates the steps that it repeats."""
    if link.kind in ("begin", "resume"):
        first = int(link.body.get("first_step", 0))
        chain.first_step = first if chain.start is None and link.kind == "resume" else chain.first_step
        chain.start, chain.end = link, None
        back = {at for at in chain.steps if at[0] >= first}
        chain.waiting = {step for step, _ in back} | {step for step in chain.waiting if step >= first}
        chain.steps = {at: one for at, one in chain.steps.items() if at not in back}
        stands = set(link.body.get("evaluations", chain.evaluations))
        chain.evaluations = {name: one for name, one in chain.evaluations.items() if name in stands}
        chain.in_file_order = list(chain.evaluations.values())  # the file is written anew
    elif link.kind == "step":
        step, _, policy = link.name.partition("/")
        chain.steps[int(step), policy] = link
        chain.waiting.discard(int(step))
    elif link.kind == "evaluation":
        chain.evaluations[link.name] = link
        chain.in_file_order.append(link)
    elif link.kind == "checkpoint":
        chain.checkpoints.pop(link.name, None)  # the latest is the last
        chain.checkpoints[link.name] = link
    elif link.kind == "end":
        chain.end = link


def _name(link: AuditLink) -> str:
    return f"link {link.number} ({link.kind} {link.name})"
