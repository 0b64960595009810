"""More pages in the browser: the examples' own views of a rollout, and a store behind a URL."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[2]
AGL = ROOT / ".venv" / "bin" / "agl"
TOKEN = "the-token-of-a-store"
GAME = "trained: wolves, record: true, preset: mini7, sides: {wolves: policy, town: scripted}"
GAMES = f"environment.train={{target: werewolf.tasks:games, args: {{n: 2, {GAME}}}}}"
NOTHING_LEARNED = 3
"""Exit status of `agl train` where all rewards of each group were equal."""
RUNS = {
    "spider": ["environment.train.args.limit=2", "environment.val.args.limit=2", "environment.headroom={}"],
    "werewolf": ["environment.val.args.n=2", GAMES],
}
"""Example → settings of a run of one step."""


def train_examples(folder: Path) -> None:
    """Make a run of one step of each example that has a view, or raise ``RuntimeError``."""
    for name, settings in RUNS.items():
        small = ["training.steps=1", "training.batch_size=2", "training.recipe.group_size=2", *settings]
        command = [str(AGL), "train", "--config", f"examples/{name}/cpu.yaml", "--set", f"output={folder}"]
        command += [word for one in small for word in ("--set", one)]
        done = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, stderr=subprocess.PIPE, encoding="utf-8")
        if done.returncode not in (0, NOTHING_LEARNED):
            raise RuntimeError(f"{name}: agl train ended with {done.returncode}: {done.stderr[-800:]}")


def open_views(tab: Any, folder: Path, checks: Any) -> None:
    """Open the view of a trained rollout of each run, from the rollout's page; it draws in its frame."""
    for name, title, wanted in (("spider", "Journey", "SELECT"), ("werewolf", "Replay", "狼人")):
        (run,) = (path.parent.name for path in folder.glob(f"*-{name}-*/store.sqlite"))
        page = tab.open(f"/s/{run}/runs/{run}/rollouts?batch=train/0")
        page.locator("main:not([data-again])").wait_for(timeout=60_000)
        tab.open(tab.links("/rollouts/ro-")[0])
        page.get_by_role("link", name=title, exact=True).click()
        page.wait_for_url("**/views/*")
        drawn = page.frame_locator("iframe.view").locator("body")
        drawn.wait_for(timeout=60_000)
        said = drawn.inner_text()
        checks.pages.add(page.url.replace(tab.base, ""))
        checks.check(f"the {title.lower()} of {name} is drawn", wanted.lower() in said.lower(), said[:200])
        checks.check(f"{title}: no complaint", not tab.complaints, tab.complaints[:3])


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def store_server(file: Path) -> Iterator[str]:
    """Serve a store's file to those who have :data:`TOKEN`; yield its URL."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [str(AGL), "store", str(file), "--port", str(port)]
    served = subprocess.Popen(command, stdout=sys.stderr, env={**os.environ, "AGL_TOKEN": TOKEN}, cwd=ROOT)
    try:
        _wait(url, served)
        yield url
    finally:
        served.terminate()
        served.wait(20)


def _wait(url: str, served: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and served.poll() is None:
        try:
            with urlopen(f"{url}/readyz", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError("agl store did not start")


def open_remote(tab: Any, checks: Any) -> None:
    """From the runs of a store behind a URL down to a call's tokens."""
    page = tab.open("/")
    page.get_by_role("link", name="long").first.click()
    page.get_by_role("link", name="Rollouts", exact=True).first.click()
    page.locator("main:not([data-again])").wait_for(timeout=60_000)
    tab.open(tab.links("/rollouts/ro-")[0])
    tab.open(tab.links("/calls/")[0])
    count = page.locator("[data-tokens] .t").count()
    checks.check("tokens of a store behind a URL", count > 0, count)
