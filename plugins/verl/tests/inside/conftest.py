"""Tests of what runs inside verl: collected everywhere, skipped where verl is not (`make test-verl-inside`).

What verl warns of when it is imported is not ours, and a warning is an error here: so it is imported first.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings

if importlib.util.find_spec("verl") is not None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from agl_verl.inside.selftest import TOUCHED

        for path in [*TOUCHED, "verl.workers.engine", "verl.utils.config", "verl.utils.tensordict_utils"]:
            importlib.import_module(path.partition(":")[0])
