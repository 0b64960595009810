"""The child: verl's own entry point, with a configuration from the driver, kept alive until the driver ends
it.

    python -m agl_verl.inside.main        (configuration as JSON on the first line of standard input)

Its standard input stays open for as long as the driver lives; when it ends, so do the engine, Ray and this
process. A cluster that was joined loses this run's actors, and stands.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from agl_verl.process import session
from agl_verl.process.channel import Channel

PATIENCE = 15.0
"""Seconds that Ray may take to end by itself; less than the driver gives us."""


def configuration(overrides: list[str]) -> Any:
    """verl's configuration tree with ``overrides``, checked by verl itself."""
    from hydra import compose, initialize_config_module
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config
    from verl.utils.device import auto_set_device

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    auto_set_device(config)
    validate_config(
        config=config,
        use_reference_policy=need_reference_policy(config),
        use_critic=need_critic(config),
    )
    return config


def main() -> int:
    """Train; then wait for the end of standard input."""
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_until_end, daemon=True).start()
    stage("Python runs; importing verl")
    from agl_verl.inside.register import FAILED
    from agl_verl.inside.selftest import changed

    problems = [*FAILED, *changed()]
    if problems:
        print("agl-verl does not fit this verl:\n  " + "\n  ".join(problems), file=sys.stderr)
        return 3
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

    from agl_verl.inside.cluster import Kept, told

    stage("verl is imported; composing its configuration")
    config = told(configuration(order["overrides"]))
    stage("verl accepts its configuration; starting Ray and the trainer")
    runner = Kept(TaskRunnerV1, config)  # held until the end: the engine is verl's, and goes with it
    run_ppo(config, task_runner_class=runner)
    Channel().ask("finished")
    threading.Event().wait()  # the engine serves on; see _until_end
    return 0


def stage(what: str) -> None:
    """Tell the driver how far the start is."""
    Channel().ask("stage", what=what)


def _until_end() -> None:
    """Wait until the driver closes our standard input, or dies; then end, whatever is going on."""
    sys.stdin.read()
    last = threading.Timer(PATIENCE, leave, (1,))  # should Ray hang
    last.daemon = True
    last.start()
    import ray

    ray.shutdown()
    leave(0)


def leave(status: int) -> None:
    """End this process and all that Ray has started for it."""
    if os.getsid(0) == os.getpid():  # else the session is somebody else's
        session.end(os.getpid())
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
