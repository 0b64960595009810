"""A run's checkpoints and its exported policy: every file is the one that was written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from agentlightning.algorithms.journal import checkpoints_in, file_digests
from agentlightning.audit.run import OpenRun
from agentlightning.audit.verification.chain import Chain
from agentlightning.audit.verification.compare import Difference, make_difference


def compare_checkpoints(run: OpenRun, chain: Chain) -> tuple[int, list[Difference]]:
    """How many checkpoints were compared, and what differs. Those that the driver has pruned are not there;
    the newest always is.
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
            found += _files(link.body["files"], there[name], "checkpoint", name)
        elif name in newest.values() and run.info.get("summary"):
            what = "it is missing (deleted after training)"
            found.append(make_difference(None, None, "checkpoint", None, None, what, of=f"checkpoint {name}"))
    for name in there if chain.links and run.info.get("summary") else ():
        if (
            name not in chain.checkpoints
            and ("checkpoint", name) not in chain.tampered
            and chain.first_step == 0
        ):
            what = "the chain has no link of it (added or copied after training)"
            found.append(make_difference(None, None, "checkpoint", None, None, what, of=f"checkpoint {name}"))
    return done, found


def compare_policy(run: OpenRun, chain: Chain) -> list[Difference]:
    """The exported policy, file by file."""
    files = chain.end.body.get("policy") if chain.end else None
    if run.folder is None or files is None:
        return []
    if not (run.folder / "policy").is_dir():
        what = "the exported policy is missing (deleted after training)"
        return [make_difference(None, None, "policy", None, None, what, of="policy")]
    return list(_files(files, run.folder / "policy", "policy", "policy"))


def _files(then: Mapping[str, str], folder: Path, kind: str, name: str) -> Iterator[Difference]:
    of = f"checkpoint {name}" if kind == "checkpoint" else name
    now = file_digests(folder)
    for path in [*then, *(path for path in now if path not in then)]:
        was, is_ = then.get(path), now.get(path)
        if was == is_:
            continue
        how = (
            "is missing (deleted" if is_ is None else "was added (" if was is None else "was changed (edited"
        )
        yield make_difference(None, None, kind, was, is_, f"{path} {how} after training)", of=of)
