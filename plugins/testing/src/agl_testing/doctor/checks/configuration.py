"""The configuration loads, its folders can be written, and its datasets are usable."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentlightning.algorithms.schedule import check_ends_early, schedule_of
from agentlightning.algorithms.tasks import check_tasks, repetition_warning, task_id
from agentlightning.credit.checks import (
    check_credit_fields,
    check_supported_fields,
)
from agentlightning.plugins.manager import pick
from agentlightning.terminal import plural
from agentlightning.train.configured import ConfiguredRun
from agentlightning.train.serving import driver_spec
from agentlightning.types import LLM, UsageError
from agl_testing.doctor.checks.agent_code import ADVICE, faults_of_import
from agl_testing.doctor.checks.environment import nearest_existing
from agl_testing.doctor.checks.private_fields import check_private_fields
from agl_testing.doctor.figures import format_bytes
from agl_testing.doctor.findings import Findings
from agl_testing.doctor.report import Check, Notes, failure

SMALL_VAL = 30
"""With fewer held-out tasks, the 95 % interval of a mean reward is wider than ±0.18."""


async def check_configuration(findings: Findings) -> Check:
    """Check recipe, driver, policy, datasets and folders of the configured run."""
    assert findings.load is not None
    try:
        configured = findings.load()
    except UsageError as error:
        check = failure("configuration", error)
        broken = findings.plugins.broken if findings.plugins else {}
        faults = faults_of_import(error)
        if faults:
            lines = [f"{fault.place} {fault.what}" for fault in faults]
            check.detail, check.title = [*lines[1:], check.title, *check.detail], lines[0]
        check.advice = [*dict.fromkeys(ADVICE[fault.kind] for fault in faults)] or check.advice
        check.data = {"faults": [fault._asdict() for fault in faults]}
        check.advice += [f"Plugin {name} could not be loaded: {why}" for name, why in broken.items()]
        return check
    notes = Notes()
    _recipe(notes, configured)
    _policy(notes, configured)
    training = configured.trainer.config.training
    data = datasets(notes, configured.train, configured.val, training.steps)
    if training.steps and (often := repetition_warning(configured.train, training.batch_size)):
        notes.warn(often, "Give more tasks, or a smaller batch_size.")
    check_private_fields(notes, configured)
    for place in _places(configured):
        _writable(notes, place)
    if notes.status != "fail":
        findings.configured = configured
    recipe = configured.trainer.recipe
    title = (
        f"{plural(len(configured.train), 'task')} to train on, {len(configured.val)} held out; "
        f"{recipe.name}, {training.steps} steps of {training.batch_size} × {recipe.group_size} rollouts"
    )
    return notes.check("configuration", title, **data)


def _recipe(notes: Notes, configured: ConfiguredRun) -> None:
    """Raise the UsageError or ValueError that training would raise at its first step. Report what a service
    that trains says about the run's model.
    """
    trainer, plugins = configured.trainer, configured.trainer.plugins
    spec = pick(plugins.drivers, "driver", trainer.config.backend.driver)
    check_supported_fields(
        trainer.recipe, trainer.config.backend.driver, spec.supported_fields, spec.unsupported_fields
    )
    schedule = schedule_of(plugins, trainer.recipe, trainer.config.training)
    check_ends_early(schedule, trainer.config.backend.driver, spec.ends_early)
    check_credit_fields(trainer.recipe, **plugins.credit_functions)
    list(plugins.answers("agl_batch_edits", config=trainer.config, plugins=plugins, recipe=trainer.recipe))
    if spec.environment_info is not None:
        facts = spec.environment_info(trainer.config.backend.options)
        if spec.paid:
            notes.fact(f"driver {spec.name}: " + ", ".join(f"{key} {value}" for key, value in facts.items()))


def _policy(notes: Notes, configured: ConfiguredRun) -> None:
    served = configured.trainer.config.served
    driver_spec(configured.trainer.plugins, configured.trainer.config.backend.driver, served)
    if not served.trained:
        notes.fail("no policy is named", "Set backend.policy to a model folder in Hugging Face layout.")
    for name, given in {**served.trained, **served.frozen}.items():
        kind = "" if name in served.trained else " (frozen)"
        if isinstance(given, LLM):
            where = ", ".join([given.endpoint, *given.replicas])
            notes.fact(f"policy {name}{kind}: {given.model} at {where}")
        elif not Path(given.path).is_dir():
            notes.fail(
                f"the policy's folder {given.path} does not exist",
                f"Set backend.{f'policies.{name}.path' if served.named else 'policy'} to one that does.",
            )
        else:
            called = f"{name}{kind}: " if served.named else ""
            notes.fact(f"policy {called}{given.path}, {format_bytes(folder_bytes(Path(given.path)))}")


def datasets(notes: Notes, train: Sequence[Any], val: Sequence[Any], steps: int) -> dict[str, Any]:
    """Report dataset sizes, duplicate tasks, ids shared by different tasks, and held-out tasks in the
    training set.
    """
    check_tasks(train, "training tasks")
    check_tasks(val, "held-out tasks")
    if not train and steps:
        notes.fail("there are no training tasks", "Give environment.train a file or a target.")
    if not val:
        notes.warn("there are no held-out tasks", "Give environment.val: else nobody sees what was learned.")
    elif len(val) < SMALL_VAL:
        notes.warn(
            f"only {plural(len(val), 'held-out task')}: differences below ±{0.98 / len(val) ** 0.5:.2f} "
            "cannot be seen",
            f"Hold out {SMALL_VAL} or more.",
        )
    leaked = len({_content(t) for t in train} & {_content(t) for t in val})
    if leaked:
        notes.warn(
            f"{plural(leaked, 'held-out task')} also to train on: the evaluation will flatter",
            "Take them out of one of the two.",
        )
    doubles = len(train) - len({_content(t) for t in train})
    if doubles:
        notes.fact(f"{doubles} of the training tasks are doubles")
    clashes = id_clashes(train)
    if clashes:
        notes.warn(
            f"{plural(len(clashes), 'task id')} of several tasks each, e.g. {clashes[0]!r}",
            "Give each task an id of its own: groups by `task` would mix them.",
        )
    return {
        "train": len(train),
        "val": len(val),
        "leaked": leaked,
        "doubles": doubles,
        "clashes": len(clashes),
    }


def id_clashes(tasks: Sequence[Any]) -> list[str]:
    """Return task ids that belong to different tasks."""
    distinct = {(task_id(task), _content(task)) for task in tasks}
    return sorted(name for name, n in Counter(name for name, _ in distinct).items() if n > 1)


def folder_bytes(folder: Path) -> int:
    """Return the size of all files below a folder, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _content(task: Any) -> str:
    """Return a task without its id in canonical form, to find duplicates under another id."""
    bare = (
        {k: v for k, v in task.items() if k not in ("id", "task_id", "ID")}
        if isinstance(task, dict)
        else task
    )
    return json.dumps(bare, sort_keys=True)


def _places(configured: ConfiguredRun) -> list[Path]:
    """Return the folders that the run will write to."""
    store = configured.trainer.config.store
    places = [Path(configured.trainer.config.output)]
    if isinstance(store, str | Path) and "://" not in str(store) and str(store) != ":memory:":
        places.append(Path(store).expanduser())
    return places


def _writable(notes: Notes, place: Path) -> None:
    where = nearest_existing(place.absolute())
    if not os.access(where, os.W_OK | os.X_OK):
        notes.fail(f"{where} cannot be written", "Choose another `output` or `store`, or mend its rights.")
    notes.fact(f"{place}: {format_bytes(shutil.disk_usage(where).free)} free")
