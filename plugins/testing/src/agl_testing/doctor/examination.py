"""Run the checks in order, each with the findings of earlier ones."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from agentlightning.train.configured import ConfiguredRun
from agl_testing.doctor.checks.capture import check_capture
from agl_testing.doctor.checks.configuration import check_configuration
from agl_testing.doctor.checks.engine import check_engine, check_gateway
from agl_testing.doctor.checks.environment import check_environment
from agl_testing.doctor.checks.packages import check_packages, check_plugins
from agl_testing.doctor.checks.prefix import check_prefix
from agl_testing.doctor.checks.rehearsal import check_forecast
from agl_testing.doctor.checks.reward import check_reward
from agl_testing.doctor.checks.store import check_store
from agl_testing.doctor.findings import Findings, ProbeSize
from agl_testing.doctor.report import Check, Report, failure

log = logging.getLogger(__name__)


class PlannedCheck(NamedTuple):
    """A check and the checks that it needs."""

    name: str
    check: Callable[[Findings], Awaitable[Check]]
    needs: tuple[str, ...] = ()


MACHINE = (
    PlannedCheck("environment", check_environment),
    PlannedCheck("plugins", check_plugins),
    PlannedCheck("packages", check_packages),
)
RUN = (
    PlannedCheck("configuration", check_configuration, ("packages",)),
    PlannedCheck("store", check_store, ("configuration",)),
    PlannedCheck("engine", check_engine, ("environment", "configuration", "store")),
    PlannedCheck("gateway", check_gateway, ("engine",)),
    PlannedCheck("capture", check_capture, ("gateway",)),
    PlannedCheck("prefix", check_prefix, ("gateway",)),
    PlannedCheck("reward", check_reward, ("capture",)),
    PlannedCheck("forecast", check_forecast, ("reward",)),
)


async def examine(
    load: Callable[[], ConfiguredRun] | None = None,
    size: ProbeSize | None = None,
    *,
    on_start: Callable[[str], None] = lambda name: None,
    on_check: Callable[[Check], None] = lambda check: None,
) -> Report:
    """Run all checks; without ``load``, only those of the machine.

    ``load`` reads the configuration; a UsageError fails the check ``configuration`` with its message.
    ``on_start`` and ``on_check`` are called when each check begins and ends. The probe writes to a temporary
    folder, which is always removed.
    """
    checks: list[Check] = []

    def record(check: Check) -> None:
        checks.append(check)
        on_check(check)

    with tempfile.TemporaryDirectory(prefix="agl-doctor-", ignore_cleanup_errors=True) as scratch:
        findings = Findings(load, size or ProbeSize(), Path(scratch), AsyncExitStack())
        try:
            async with findings.stack:
                for step in (*MACHINE, *(RUN if load else ())):
                    on_start(step.name)
                    record(await _checked(step, checks, findings))
        except (
            Exception
        ) as error:  # what was opened could not be closed in order: a runner or engine that died
            log.debug("closing", exc_info=True)
            record(failure("closing", error))
    return Report(
        ok=all(check.status != "fail" for check in checks),
        checks=checks,
        suggested_group_size=findings.suggested_group_size,
        forecast=findings.forecast,
    )


async def _checked(step: PlannedCheck, before: list[Check], findings: Findings) -> Check:
    """Run and time one check. An error becomes its result; a check whose needs failed is skipped."""
    unusable = {check.name for check in before if check.status in ("fail", "skipped")}
    if missing := [name for name in step.needs if name in unusable]:
        return Check(name=step.name, status="skipped", title=f"skipped: because {missing[0]} failed")
    began = time.perf_counter()
    try:
        check = await step.check(findings)
    except Exception as error:
        log.debug("check %s", step.name, exc_info=True)
        check = failure(step.name, error)
    check.seconds = round(time.perf_counter() - began, 3)
    return check
