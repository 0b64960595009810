"""Runs the code of a ``python`` grader in a sandbox of agl-programs, where it reaches no network and nothing
of the run. Where this machine makes no sandbox, the grader is refused: its code is never run otherwise.
"""

from __future__ import annotations

import json
import math
from typing import Any

from agl_programs.sandbox.box import Sandbox

from agentlightning.types import UsageError
from agl_judge.client import BadVerdict

SECONDS = 120
"""Documented limit of a python grader's run."""
LIMITS = {"memory": 2 << 30, "disk": 1 << 30, "processes": 64, "seconds": SECONDS}
"""Of the run of a grader, as documented."""
LONGEST_SOURCE = 256 << 10
"""Bytes of source, as documented."""
_MARK = "agl-grade:"
_PROGRAM = f"""
import json, sys
given = json.load(sys.stdin)
names = {{"__name__": "grader"}}
exec(compile(given["source"], "grader", "exec"), names)
print("\\n" + {_MARK!r} + json.dumps(float(names["grade"](given["sample"], given["item"]))))
"""


def sandbox() -> Sandbox:
    """Return a new sandbox for one grader. Raise :class:`UsageError` where there can be none."""
    try:
        return Sandbox(**LIMITS)
    except UsageError as error:
        raise UsageError(f"a grader of the type python is code of somebody else: {error}") from None


async def grade(source: str, sample: Any, item: Any) -> float:
    """Return what ``grade(sample, item)`` of ``source`` returns. Raise :class:`BadVerdict` where it gives no
    number.
    """
    given = json.dumps({"source": source, "sample": sample, "item": item})
    done = await sandbox().run(["python3", "-I", "-S", "-c", _PROGRAM], stdin=given)
    if done.ended:
        raise BadVerdict(f"grade() gave no number: it was ended by the limit of {done.ended}")
    said = next((line for line in reversed(done.stdout.splitlines()) if line.startswith(_MARK)), None)
    if said is None:
        why = done.stderr.strip().rpartition("\n")[2][:300] or f"status {done.status}"
        raise BadVerdict(f"grade() gave no number: {why}")
    found = float(json.loads(said.removeprefix(_MARK)))
    if not math.isfinite(found):
        raise BadVerdict(f"grade() gave no number: {found}")
    return found
