"""What verl would compute with, asked of the interpreter that has it; it is not imported here."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from agl_verl.config.options import OptionError, read_options

WANTED = ("verl", "torch", "ray", "agl-verl", "agl-local")
ASK = """
import json, platform, sys
from importlib.metadata import PackageNotFoundError, version
def of(name):
    try: return version(name)
    except PackageNotFoundError: return None
print(json.dumps({"python": platform.python_version(), **{name: of(name) for name in sys.argv[1:]}}))
"""


def environment_info(options: Mapping[str, Any]) -> dict[str, str]:
    """Device, ranks and versions. OptionError for an interpreter that is not there or lacks something."""
    o = read_options(options)
    try:
        wanted = [*WANTED, *([] if o.engine == "embedded" else [o.engine])]
        done = subprocess.run([o.python, "-c", ASK, *wanted], capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise OptionError(f"backend.options.python: {o.python} cannot be asked for verl: {error}") from None
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    if missing := [name for name, there in found.items() if there is None]:
        raise OptionError(
            f"backend.options.python: {o.python} has no {', '.join(missing)}: make an environment that has "
            "with `scripts/environment verl`; for GPUs: scripts/setup_gpu.sh"
        )
    about = {"device": o.device, "ranks": str(o.ranks), "engine": o.engine}
    return {**about, **{name: str(there) for name, there in found.items()}}
