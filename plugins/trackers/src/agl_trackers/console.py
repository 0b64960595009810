"""The terminal shows live progress while a run trains, then evaluations before and after, and the reward's
curve. Where there is no terminal, each step is a line, and work that takes longer says so every ``QUIET``
seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress as ProgressBar,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from agentlightning.algorithms.counters import TOTALS
from agentlightning.credit.accounts import agents_word
from agentlightning.hookspecs import hookimpl
from agentlightning.terminal import Console
from agentlightning.types import Call, Evaluation, Progress, Rollout, StepReport
from agentlightning.types.select import caller_name, policy_for
from agl_trackers.activity import Activity
from agl_trackers.curve import RewardHistory, curve, smooth, sparkline

QUIET = 30.0
"""Seconds without a line in a log, after which another line says what is under way."""
MOST_CALLERS = 20
"""Names of agents that a warning lists."""


class ConsoleTracker(RewardHistory):
    """Writes to stderr, so that a command's result on stdout stays machine-readable."""

    def __init__(
        self,
        folder: Path,
        console: Console | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__()
        self.folder = folder
        self._clock = clock
        self._activity = Activity(clock)
        self._printed = clock()
        """When the last line was printed."""
        self._last: StepReport | None = None
        self._last_step = 0.0
        """When it was reported."""
        self.console = console or Console(stderr=True)
        self._evaluations: dict[str, Evaluation] = {}
        self._live: Live | None = None
        self._steps = 0
        self._tokens = 0.0
        self._began = 0.0
        self._earlier_steps = 0
        """Steps of the run's earlier life."""
        self._failed = False
        """Whether a rollout of a step or an evaluation has failed."""
        self._unmatched: dict[str, str] = {}
        """Entries of ``agent.policies`` that have matched no call yet."""
        self._callers: set[str] = set()
        """Whom calls came from while there are such entries."""
        self._progress = ProgressBar(
            TextColumn("[bold]step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=36),
            TimeElapsedColumn(),
            TextColumn("· ETA"),
            TimeRemainingColumn(),
        )

    def start(self, run: Mapping[str, Any]) -> None:
        self._steps = int(run.get("steps", 0))
        self.begin(run)
        self._unmatched = dict(run.get("agents") or {})
        facts = Table.grid(padding=(0, 2))
        for name, value in run.get("about", {}).items():
            facts.add_row(Text(str(name), style="bold"), Text(str(value)))
        parts: list[Any] = [facts]
        if note := run.get("note"):
            parts.append(Text(f"\n{note}", style="italic"))
        title = Text(f"Agent Lightning · {run['run_id']}")
        self.console.print(Panel(Group(*parts), title=title, title_align="left", border_style="cyan"))

    def resumed(
        self, run: Mapping[str, Any], reports: Sequence[StepReport], evaluations: Sequence[Evaluation]
    ) -> None:
        """Print the step at which the run resumes. The curve at the end begins at the run's first step."""
        self.start(run)
        for report in reports:
            self.add(report)
        self._evaluations = {evaluation.name: evaluation for evaluation in evaluations}
        self._earlier_steps = len(self.rewards)
        self._failed = any(one.failures_text() for one in reports) or any(one.failed for one in evaluations)
        self._print(f"[bold]resumed[/] after {self._earlier_steps} of {self._steps} steps")

    def step(self, report: StepReport) -> None:
        if not self._began:
            self._began = self._clock() - sum(report.seconds.values())
        self.add(report)
        self._failed |= bool(report.failures_text())
        self._activity.end()
        if self._last is None:  # a wrong name is cheapest to know of now
            self._warn_of_unmatched()
        self._last, self._last_step = report, self._clock()
        self._tokens += report.metrics.get("tokens", 0.0)
        if not self.console.is_terminal:
            self._print(Text(self._line(report)))
            return
        self._show()
        self._progress.update(self._progress.task_ids[-1], completed=report.step + 1)

    @hookimpl
    def agl_progress(self, progress: Progress) -> None:
        self._activity.progress(progress)
        self._show()

    @hookimpl
    def agl_rollout_finished(self, rollout: Rollout) -> None:
        if rollout.status.final:
            self._activity.rollout_ended(rollout.rollout_id)
            self._show()

    @hookimpl
    def agl_call_recorded(self, call: Call) -> None:
        self._activity.called(0 if call.response_ids is None else len(call.response_ids))
        if self._unmatched:
            self._callers.add(caller_name(call.tags))
            unmatched = self._unmatched.items()
            self._unmatched = {e: p for e, p in unmatched if policy_for({e: p}, call.tags) is None}
        self._show()

    @hookimpl
    def agl_rows_built(self, step: int) -> None:
        self._activity.progress(Progress(what="update", step=step))

    def _show(self) -> None:
        """Open the display of a terminal; in a log, print a line if there was none for long."""
        if self.console.is_terminal:
            if self._live is None:
                self._progress.add_task("", total=self._steps)
                self._live = Live(console=self.console, refresh_per_second=4, get_renderable=self._panel)
                self._live.start()
        elif self._clock() - self._printed >= QUIET and (line := self._activity.line()):
            step = (
                f"step {self._activity.step + 1:4}/{self._steps}  " if self._activity.step is not None else ""
            )
            self._print(f"{step}{line}  {self._eta()}".rstrip())

    def evaluated(self, evaluation: Evaluation) -> None:
        self._activity.end()
        self._evaluations[evaluation.name] = evaluation
        self._failed |= bool(evaluation.failed)
        text = (
            f" {evaluation.name:15} reward {evaluation.reward:.3f}{_failures(evaluation)}  "
            f"95 % {evaluation.interval_text()}  n={evaluation.n}  failed={evaluation.failed}  "
            f"{evaluation.seconds:.1f} s"
        )
        self._print(Text.assemble(("evaluated", "bold"), text))

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.close()
        if {"before", "after"} <= self._evaluations.keys():
            self.console.print(_before_after(self._evaluations))
        if len(self.rewards) > 1:
            lines = curve(smooth(self.rewards, 5))
            lines.append("      └" + "─" * 60)
            lines.append(f"       step 1{'':{52 - len(str(len(self.rewards)))}}{len(self.rewards)}")
            self.console.print(
                Panel(
                    "\n".join(lines),
                    title="training reward (mean of 5 steps)",
                    title_align="left",
                    expand=False,
                )
            )
        if self.policies and self.latest:  # an evaluation alone has no figure of any column
            self.console.print(self._by_policy(summary.get("policies", {})))
        totals = summary.get("totals", {})
        if totals.get("calls"):
            gap = totals["logprob_gap_max"]
            self.console.print(
                f"{_calls(totals)} · {_tokens(totals)}\n"
                "largest gap between a stored logprob and the trainer's own: "
                f"{'not measured' if gap is None else f'{gap:.1e}'}",
                highlight=False,
            )
        if note := agents_word({metric: totals.get(total, 0.0) for total, metric in TOTALS.items()}):
            self._print(Text(note, "yellow"))
        self._warn_of_unmatched()
        for alarm in (summary.get("alarms") or {}).values():  # of agl-audit
            self._print(Text.assemble(("alarm", "bold red"), f" {alarm['text']}"))
        for who, counts in summary.get("accounts", {}).items():
            listed = ", ".join(f"{n} × {reason}" for reason, n in counts.items())
            self._print(Text.assemble(("counted", "yellow"), f" {who}: {listed}"))
        self._print(Text(f"Files: {self.folder}"))
        if chain := summary.get("chain"):
            signed = "signed with AGL_SIGNING_KEY" if chain["signed"] else "not signed"
            self._print(Text(f"Chain: {chain['head']} ({chain['links']} links, {signed})"))
        if run := summary.get("run_id"):
            more = f"; agl explain {run}; agl serve {run}"
            if summary.get("learned") is False:
                more = f"{' --failed' if self._failed else ''}; agl explain {run}"
            self._print(Text(f"Next: agl rollouts {run}{more if summary.get('policy') else ''}"))

    def close(self) -> None:
        """Give the terminal back, also in the middle of a run."""
        if self._live:
            self._live.stop()
            self._live = None

    def _warn_of_unmatched(self) -> None:
        """Print the entries of ``agent.policies`` that matched no call, unless no call was seen here."""
        for entry, policy in self._unmatched.items() if self._callers else ():
            said = f"agent.policies: {entry!r} has matched no call, so {policy!r} got none by it"
            callers = ", ".join(sorted(self._callers)[:MOST_CALLERS])
            advice = f"compare it with the names that made calls: {callers}"
            self._print(Text(f"WARNING: {said}; {advice}", "yellow"))

    def _print(self, text: str | Text) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)
        self._printed = self._clock()

    def _rate(self) -> float:
        return self._tokens / max(1e-9, self._clock() - self._began)

    def _eta(self) -> str:
        """Return the seconds that the remaining steps will take, as the finished ones took; empty before
        the first.
        """
        if self._last is None:
            return ""
        done = self._last.step + 1
        a_step = (self._last_step - self._began) / max(1, done - self._earlier_steps)
        left = a_step * (self._steps - done) - (self._clock() - self._last_step)
        return f"ETA {max(0.0, left):.0f} s"

    def _by_policy(self, totals: Mapping[str, Mapping[str, float]]) -> Table:
        """Make the table of several policies: updates, calls, tokens, and first and last mean credit."""
        table = Table(title="policies", title_justify="left")
        for column in ("", "version", "updates", "idle", "calls", "tokens", "mean credit"):
            table.add_column(column, justify="right" if column else "left")
        for name, values in self.policies.items():
            of, last = totals.get(name, {}), self.latest.get(name)
            known = [value for value in values if value == value]
            went = f"{known[0]:.2f} → {known[-1]:.2f}" if known else "–"
            counts = [
                f"{of.get(key, 0):.0f}" for key in ("optimizer_steps", "skipped", "calls", "tokens_trained")
            ]
            table.add_row(name, f"{last.policy_version}" if last else "–", *counts, went)
        return table

    def _line(self, report: StepReport) -> str:
        done = report.step + 1
        who = f"{report.policy} v{report.policy_version}  " if self.policies else ""
        credit = report.metrics.get("credit_mean")
        own = f"credit {credit:.3f}  " if self.policies and credit is not None else ""
        return (
            f"step {done:4}/{self._steps}  {who}reward {_number(self.rewards[-1])}{_failures(report)}  {own}"
            f"rows {report.metrics.get('rows', 0):.0f}  {self._rate():.0f} tokens/s  {self._eta()}"
        )

    def _panel(self) -> Panel:
        now = Text(self._activity.line(), style="cyan")
        if (report := self._last) is None:
            return Panel(now, border_style="cyan", title=Text("before the first step"), title_align="left")
        m, s = report.metrics, report.seconds
        facts = Table.grid(padding=(0, 3))
        facts.add_row(
            f"reward [bold green]{_number(m.get('reward_mean', float('nan')))}[/]",
            Text(sparkline(self.rewards, 36), style="green"),
        )
        facts.add_row(
            f"tokens/s {self._rate():.0f}", f"rows {m.get('rows', 0):.0f} · grad {m.get('grad_norm', 0):.3f}"
        )
        if said := report.failures_text():
            facts.add_row("failures", Text(said, style="yellow"))
        facts.add_row("seconds", " · ".join(f"{name} {value:.2f}" for name, value in s.items()))
        for name, last in list(self.latest.items()) if self.policies else ():
            text = f"{name} v{last.policy_version}  rows {last.metrics.get('rows', 0):.0f}  credit "
            facts.add_row(Text(text + _number(last.metrics.get("credit_mean", float("nan")))))
        return Panel(
            Group(self._progress, facts, *([now] if now else [])),
            border_style="cyan",
            title=Text(f"{report.policy} v{report.policy_version}"),
            title_align="left",
        )


def _tokens(totals: Mapping[str, float]) -> str:
    """Return the number of trained tokens, and of tokens in groups whose advantages are all 0."""
    idle = totals.get("tokens_zero_advantage", 0.0)
    text = f"{totals['tokens_trained']:.0f} tokens trained"
    return f"{text} ({idle:.0f} others had advantage 0)" if idle else text


def _failures(of: StepReport | Evaluation) -> str:
    """Return how many rollouts failed, how these count in the mean before it, and a reason."""
    return f" ({said})" if (said := of.failures_text()) else ""


def _number(value: float) -> str:
    """Format a figure; NaN is "none"."""
    return "none" if math.isnan(value) else f"{value:.3f}"


def _calls(totals: Mapping[str, float]) -> str:
    """Return the number of calls, and of exactly captured ones. An attempt that another one followed is not
    trained, so its calls have no verdict and are counted apart.
    """
    behind = totals.get("calls_left_behind", 0.0)
    text = f"{totals['calls'] - behind:.0f} calls, {totals['calls_exact']:.0f} captured exactly"
    if none := totals.get("calls_no_ids", 0.0):
        why = "refused, failed or of a frozen policy" if totals.get("calls_frozen") else "refused or failed"
        text += f", {none:.0f} without ids ({why})"
    return text + (f" (and {behind:.0f} in attempts that were followed by another)" if behind else "")


def _change(before: float, after: float) -> tuple[str, str, str, str, str]:
    """Return a row with the word gain, loss or no change, the difference, and the ratio of a positive reward
    that has grown.
    """
    word = "gain" if after > before else "loss" if after < before else "no change"
    ratio = f" (× {after / before:.2f})" if after > before > 0 else ""
    return word, "", f"{after - before:+.3f}{ratio}", "", ""


def _before_after(evaluations: Mapping[str, Evaluation]) -> Table:
    table = Table(title="held-out tasks", title_justify="left")
    for column in ("", "tasks", "reward", "95 % interval", "failed"):
        table.add_column(column, justify="left" if not column else "right")
    sets = [name.removeprefix("before/") for name in evaluations if name.startswith("before/")]
    kinds = [("greedy", ""), ("sampled", "-sampled"), *((f"on {name}", f"/{name}") for name in sets)]
    for how, suffix in kinds:
        pair = [(when, evaluations.get(when + suffix)) for when in ("before", "after")]
        for when, e in pair:
            if e is not None:
                failed = f"{e.failed} ({e.left_out} left out)" if e.left_out else str(e.failed)
                table.add_row(f"{when}, {how}", str(e.n), f"{e.reward:.3f}", e.interval_text(), failed)
        before, after = pair[0][1], pair[1][1]
        if before and after:
            colour = "bold green" if after.reward > before.reward else "bold yellow"
            table.add_row(*_change(before.reward, after.reward), style=colour)
            table.add_section()
    return table
