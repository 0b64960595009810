"""A whole fine-tuning: fetch and load the policy, train it with progress on stderr, write the folder.

Invariants: whatever can be refused is refused before training; a run that ends early leaves no output folder.
"""

from __future__ import annotations

import glob
import os
import pkgutil
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from agentlightning.terminal import Console
from agl_local.network.lora import adapted
from agl_local.options import pick_device
from agl_local.policy.adapters import add_adapter, base_of
from agl_local.policy.catalogue import CATALOGUE
from agl_local.policy.fetch import first_use
from agl_local.policy.files import is_adapter, remove_unfinished
from agl_local.policy.folder import DTYPES, fingerprint, state, stored_fingerprint
from agl_local.policy.weights import not_finite, stored_state
from agl_local.serving import load
from agl_local.sft.chats import ChatDataError, ChatSet, chats_of, read_chats
from agl_local.sft.finetune import SftReport, SftSettings, SftSettingsError, SftStep, finetune
from agl_local.sft.folder import Parent, check_output, shown, write_finetuned

LINES = 20
"""Lines of progress in a log that is no terminal."""


def load_chats(given: str, option: str) -> ChatSet:
    """Return the chats of a JSONL file, or those that ``module:function`` returns; ``option`` is named in
    errors. The working directory is searched for the module.
    """
    if ":" not in given or Path(given).exists():
        return read_chats(given)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        function = pkgutil.resolve_name(given)
    except (ImportError, AttributeError, ValueError) as error:
        raise ChatDataError(
            f"{option}: {given} is neither a file nor module:function: {error}; PYTHONPATH names further "
            "folders with modules"
        ) from error
    try:
        rows = list(function())
    except Exception as error:
        raise ChatDataError(f"{option}: {given} raised {type(error).__name__}: {error}") from error
    return chats_of(rows, given)


def run(
    policy: str | Path,
    data: ChatSet,
    output: str | Path,
    settings: SftSettings,
    *,
    val: ChatSet | None = None,
    threads: int = 1,
    console: Console | None = None,
) -> dict[str, Any]:
    """Fine-tune ``policy`` (a folder, or a name that ``fetch`` knows) and write the folder ``output``.

    With ``lora`` a folder with an adapter may stand in the place of the policy: its matrices are trained on.
    Return the summary that ``agl sft --json`` prints. Raise a :class:`UsageError` for what cannot be used.
    """
    console = console or Console(stderr=True)
    try:
        target = check_output(output)
    except FileExistsError as error:
        raise SftSettingsError(f"--output: {error}") from None
    remove_unfinished(target.parent, glob.escape(target.name))
    # Gradients of adapters are small enough for one of each micro-batch, and threads that wait for nobody
    # get more done than those that share a small product.
    workers = threads if settings.lora is not None else 1
    torch.set_num_threads(threads // workers)
    given = Path(policy).expanduser()
    goes_on = settings.lora is not None and is_adapter(given)
    base = base_of(given) if goes_on else str(policy)
    found = first_use(base)
    _refuse_inside(target, (given, found.path), found.path if settings.lora is not None else None)
    device = pick_device(settings.device)
    if settings.quantize is None:
        start = load(found.path, "cpu", "float32")
        digest, wrong = fingerprint(start.model), not_finite(state(start.model))
        start.model.to(device, DTYPES[settings.dtype])
    else:  # the weights are never in memory as a whole
        digest, wrong = stored_fingerprint(found.path), not_finite(stored_state(found.path))
        start = load(found.path, device, settings.dtype, settings.quantize)
    if wrong:
        raise SftSettingsError(f"{found.path} cannot be fine-tuned: {wrong}")
    address = base if base in CATALOGUE else str(found.path)
    parent = Parent(found.origin.name, address, found.origin.licence, found.origin.source, digest)
    if goes_on:
        add_adapter(start, given, parent.digest)
        rank = next(iter(adapted(start.model).values())).lora_A.shape[0]
        if settings.lora is not None and rank != settings.lora.rank:
            raise SftSettingsError(
                f"--lora is {settings.lora.rank}; the adapter in {given} has the rank {rank}"
            )
    with show_progress(console) as (step, validated):
        report = finetune(
            start,
            data.chats,
            settings,
            val=val.chats if val else (),
            progress=step,
            validated=validated,
            workers=workers,
        )
    say_left_out(report, console)
    write_finetuned(start, target, parent, data, settings, report)
    return {
        "policy": str(target),
        "parent": str(found.path),
        "parent_sha256": parent.digest,
        "data": data.source,
        "data_sha256": data.sha256,
        **shown(settings),
        **asdict(report),
        "threads": threads,
        "peak_mb": round(_peak_mb(), 1),
    }


def _refuse_inside(target: Path, starts: Sequence[Path], base: Path | None) -> None:
    """Raise SftSettingsError for an output inside a folder that training starts from, or in place of the
    ``base`` to which an adapter would belong.
    """
    where = target.resolve()
    for start in (one.resolve() for one in starts if one.is_dir()):
        if start in where.parents or (base is not None and where == start == base.resolve()):
            raise SftSettingsError(f"--output: {target} is in {start}, where training starts: name another")


def say_left_out(report: SftReport, console: Console) -> None:
    """Print what was left out or skipped."""
    if report.too_long or report.val_too_long:
        console.print(
            f"left out, over max_len: {report.too_long} chats, and {report.val_too_long} for validation"
        )
    if report.steps_skipped:
        console.print(
            f"{report.steps_skipped} of {report.steps} steps had no finite gradient and changed nothing"
        )


@contextmanager
def show_progress(
    console: Console,
) -> Iterator[tuple[Callable[[SftStep], None], Callable[[int, float], None]]]:
    """Yield what to call after each step and each validation: a bar on a terminal, else lines."""
    columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn())
    bar = Progress(
        *columns, TextColumn("{task.description}"), console=console, disable=not console.is_terminal
    )

    def step(at: SftStep) -> None:
        rate = at.positions / max(at.seconds, 1e-9)
        left = (at.steps - at.step) * at.seconds / at.step
        text = f"epoch {at.epoch}  loss {at.loss:.4f}  {rate:.0f} tokens/s  ETA {left:.0f} s"
        bar.update(TaskID(0), completed=at.step, total=at.steps, description=text)
        if not console.is_terminal and (at.step % max(1, at.steps // LINES) == 0 or at.step == at.steps):
            console.print(f"step {at.step}/{at.steps}  {text}", highlight=False)

    def validated(epoch: int, loss: float) -> None:
        when = f"after epoch {epoch}" if epoch else "before training"
        console.print(f"validation loss {loss:.4f} {when}", highlight=False)

    with bar:
        bar.add_task("", total=None)
        yield step, validated


def _peak_mb() -> float:
    """Return the largest resident size of this process."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
