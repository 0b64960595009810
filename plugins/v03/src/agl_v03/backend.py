"""``Trainer(n_workers=…).fit(agent, "http://…")`` of Agent Lightning 0.1: run the agent on the tasks of a
server.

The server is a store: that of ``agl store``, of a run with ``agent.concurrency: 0``, or of
:class:`.AgentLightningServer`. As ``agl runner`` it needs ``AGL_SECRET`` where rollouts call a run's gateway.
Who queues the tasks trains; this process reports. It ends after ``max_tasks`` for each worker, or by SIGTERM
or Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle, islice
from typing import Any

from agentlightning.plugins.stores import open_store
from agentlightning.runner.agent import instrumentors
from agentlightning.runner.runner import Runner
from agentlightning.runner.threads import run_sync
from agentlightning.store import Store
from agentlightning.store.places import store_place
from agentlightning.types import RolloutConfig, UsageError
from agentlightning.webserver.loopback import token_from_env
from agl_cluster.runners.attempt_keys import attempt_keys_for
from agl_cluster.runners.service import serve
from agl_cluster.store.client import StoreClient
from agl_v03.client_server import AgentLightningClient, DevTaskLoader, report_of
from agl_v03.hooks import HookedAgent

DRAIN_SECONDS = 30.0
PATIENCE_SECONDS = 600.0
"""How long a server that does not answer is waited for."""
_NAMES = {
    "train": ("train_dataset", "train_data", "backend"),
    "val": ("val_dataset", "val_data"),
    "dev": ("dev_backend", "dev_data"),
}
"""Arguments of ``fit`` and ``fit_v0`` in 0.1 to 0.3."""


def take_backend(given: Mapping[str, Any]) -> tuple[tuple[Any, Any], tuple[Any, Any] | None]:
    """Return the datasets of ``fit``, and the backends if there are any: one to work for, one to try out."""
    if unknown := sorted({*given} - {name for names in _NAMES.values() for name in names}):
        raise TypeError(f"Trainer.fit() has no argument {unknown[0]!r}")
    found = {}
    for kind, names in _NAMES.items():
        found[kind] = next((given[name] for name in names if given.get(name) is not None), None)
    train, val, dev = found["train"], found["val"], found["dev"]
    if not _is_backend(train) and dev is None:
        return (train, val), None
    return (None, None), (train, dev if dev is not None else val)


def run_backend(trainer: Any, agent: Any, backend: Any) -> dict[str, Any]:
    """Run ``agent`` on the tasks of ``backend``, with the trainer's workers, tracer and hooks. Return the
    number of attempts by how they ended.
    """
    if not _is_backend(backend):
        raise UsageError(
            f"Trainer(dev=True).fit(): {backend!r} has no tasks to try; give "
            "dev_backend=agl.DevTaskLoader(tasks, resources), or use Trainer.dev(agent, tasks)"
        )
    if isinstance(backend, DevTaskLoader):
        return run_sync(lambda: _run_loader(trainer, agent, backend))
    url = backend.endpoint if isinstance(backend, AgentLightningClient) else backend
    return run_sync(lambda: _serve_url(trainer, agent, url.rstrip("/")))


def _is_backend(given: Any) -> bool:
    url = isinstance(given, str) and given.startswith(("http://", "https://"))
    return url or isinstance(given, AgentLightningClient | DevTaskLoader)


async def _serve_url(trainer: Any, agent: Any, url: str) -> dict[str, Any]:
    store = StoreClient(url, token_from_env("AGL_TOKEN"), patience=PATIENCE_SECONDS)
    store.act_as("runner")
    try:
        return await _serve(trainer, agent, store, _limit(trainer))
    finally:
        await store.close()


async def _run_loader(trainer: Any, agent: Any, loader: DevTaskLoader) -> dict[str, Any]:
    """Run the loader's tasks, each once or until ``max_tasks``, and give it the reports. They are kept in
    memory, or where ``AGL_STORAGE`` says.
    """
    store = open_store(None if store_place() else ":memory:")
    try:
        resources = await store.add_resources({**loader.resources})
        limit = _limit(trainer) or len(loader.tasks)
        queued = []
        for task in islice(cycle(loader.tasks), limit):
            once = RolloutConfig(max_attempts=1)
            made = await store.enqueue_rollout(task.input, task.mode, resources.resources_id, once)
            queued.append(made)
        counts = await _serve(trainer, agent, store, limit)
        for one in queued:
            ended = await store.get_rollout_by_id(one.rollout_id)
            loader.rollouts.append(await report_of(store, ended))
        return counts
    finally:
        await store.close()


async def _serve(trainer: Any, agent: Any, store: Store, limit: int | None) -> dict[str, Any]:
    """Run rollouts of ``store`` until a signal, or ``limit`` of them. A second signal ends the process."""
    settings = trainer.config.agent.model_copy(update={"concurrency": _workers(trainer)})
    if "timeout_seconds" not in settings.model_fields_set:
        settings = settings.model_copy(update={"timeout_seconds": None})
    hooked = HookedAgent(agent, trainer.hooks, trainer.tracer, trainer)
    runner = Runner(
        hooked,
        store,
        settings,
        attempt_keys=attempt_keys_for(store),
        plugins=trainer.plugins,
        drain=DRAIN_SECONDS,
    )
    with hooked.capturing(instrumentors(trainer.plugins, settings.adapters)):
        code = await serve(runner, lambda state: None, limit=limit)
    if code > 128:
        raise SystemExit(code)
    return dict(runner.counts)


def _workers(trainer: Any) -> int:
    """Return how many tasks run at a time: one, unless the trainer says otherwise."""
    given = "concurrency" in trainer.config.agent.model_fields_set
    return max(1, trainer.config.agent.concurrency) if given else 1


def _limit(trainer: Any) -> int | None:
    return None if trainer.max_tasks is None else trainer.max_tasks * _workers(trainer)
