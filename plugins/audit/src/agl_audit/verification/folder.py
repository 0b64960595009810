"""Compare the files of a run's checkpoints and exported policy with their logged digests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from agentlightning.algorithms.journal import checkpoints_in, file_digests
from agentlightning.types import StepReport
from agl_audit.run import CannotRecompute, OpenRun
from agl_audit.verification.chain import Chain
from agl_audit.verification.differences import Difference, make_difference


def compare_checkpoints(run: OpenRun, chain: Chain) -> tuple[int, list[Difference]]:
    """Return the number of compared checkpoints, and the differences. Only the newest checkpoint of each
    policy must be there: the driver prunes the others.
    """
    if run.folder is None:
        return 0, []
    found: list[Difference] = []
    there = {path.relative_to(run.folder).as_posix(): path for path in checkpoints_in(run.folder)}
    newest = {link.name.rpartition("/")[0]: link.name for link in chain.checkpoints.values()}
    done = 0
    for name, link in chain.checkpoints.items():
        if name in there:
            done += 1
            found += _files(link.body["files"], there[name], "checkpoint", f"checkpoint {name}")
        elif name in newest.values() and run.info.get("summary"):
            what = "it is missing (deleted after training)"
            found.append(make_difference("checkpoint", what, of=f"checkpoint {name}"))
    unlinked = [name for name in there if name not in chain.checkpoints]
    if chain.links and chain.first_step == 0 and run.info.get("summary"):
        what = "the chain has no link of it (added or copied after training)"
        for name in unlinked:
            if ("checkpoint", name) not in chain.tampered:
                found.append(make_difference("checkpoint", what, of=f"checkpoint {name}"))
    return done, found


def compare_policy(run: OpenRun, chain: Chain) -> list[Difference]:
    """Compare the exported policy, file by file."""
    files = chain.end.body.get("policy") if chain.end else None
    if run.folder is None or files is None:
        return []
    if not (run.folder / "policy").is_dir():
        what = "the exported policy is missing (deleted after training)"
        return [make_difference("policy", what, of="policy")]
    return list(_files(files, run.folder / "policy", "policy", "policy"))


def _files(then: Mapping[str, str], folder: Path, kind: str, of: str) -> Iterator[Difference]:
    now = file_digests(folder)
    for path in dict.fromkeys([*then, *now]):
        was, is_ = then.get(path), now.get(path)
        if was != is_:
            how = "is missing (deleted" if is_ is None else "was changed (edited" if was else "was added ("
            what = f"{path} {how} after training)"
            yield make_difference(kind, what, of=of, then=was, now=is_)


def compare_parameters(run: OpenRun, reports: Sequence[StepReport]) -> tuple[str, list[Difference]]:
    """Compare the newest folder of each policy with the digest that its step logged; return the result in
    words, and the differences.
    """
    said: list[str] = []
    found: list[Difference] = []
    names: list[str | None] = [*run.trained] or [None]
    for name in names:
        mine = [report for report in reports if name in (None, report.policy)]
        text, differences = _parameters_of(run, mine, name)
        said += [text] if text not in said else []
        found += differences
    return "; ".join(said), found


def _parameters_of(
    run: OpenRun, reports: Sequence[StepReport], name: str | None
) -> tuple[str, list[Difference]]:
    logged = {report.step: report.params_digest for report in reports if report.params_digest}
    if not logged:
        return "parameters not compared: no step logged their digest (driver option deterministic)", []
    last = max((report.step for report in reports), default=-1)
    for folder, done in run.policies(name):
        step = last if done is None else done - 1
        if step not in logged:
            continue
        try:
            now = run.inspector(folder).digest()
        except CannotRecompute as error:
            return f"parameters not compared: {error}", []
        where = folder.relative_to(run.folder) if run.folder else folder
        if now == logged[step]:
            return f"the parameters in {where} are those after step {step}", []
        what = f"the parameters in {where} are not those after the step (edited or replaced after training)"
        return f"{where} differs", [make_difference("params", what, step=step, then=logged[step], now=now)]
    return "parameters not compared: the run's folder holds no policy of a step with a digest", []
