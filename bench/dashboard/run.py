"""The dashboard in a real browser: every page opens, drills down, follows a live run, and is not harmed.

    scripts/environment browser; .venvs/browser/bin/python bench/dashboard/run.py [--screenshots FOLDER]

Pages are served by ``.venv/bin/agl dashboard`` over stores that :mod:`stores` makes, and over a run that
trains meanwhile in a process of its own. ``passed`` counts the checks that held, ``pages`` the addresses that
were opened, ``xss_tried`` the hostile strings that a page showed and ``xss_passed`` those of them that did no
harm. The last line is JSON; exit status 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import elsewhere
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
AGL, PYTHON = ROOT / ".venv" / "bin" / "agl", ROOT / ".venv" / "bin" / "python"
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
PROTOCOLS = "all => all.map(a => new URL(a.getAttribute('href'), location.href).protocol)"
STEPS = 6
QUERIES = (
    "",
    "?q=What+is+7",
    "?q=nowhere",
    "?sort=-reward",
    "?sort=seconds&reward=%3E0.5",
    "?status=failed&sort=task",
    "?task=t96",
    "?page=2000",
    "?size=200&sort=-tokens",
)
"""Lists that are timed over 100,000 rollouts."""
WIDE, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
HURT = """
window.hurts = [];
window.hurt = (id) => window.hurts.push(String(id));
for (const name of ["alert", "confirm", "prompt"]) window[name] = (id) => window.hurts.push(String(id));
"""


class Checks:
    """What was checked, and what did not hold."""

    def __init__(self) -> None:
        self.held = 0
        self.failed: list[str] = []
        self.pages: set[str] = set()
        self.axe: list[str] = []
        self.figures: dict[str, Any] = {}

    def check(self, name: str, holds: object, said: object = "") -> None:
        """Count a check, and say it where it does not hold."""
        if holds:
            self.held += 1
        else:
            self.failed.append(f"{name}: {said}" if said else name)
            print(f"  ✗ {self.failed[-1]}"[:600], file=sys.stderr, flush=True)

    def part(self, name: str, work: Callable[[], None]) -> None:
        """Do a part; an error in it is a check that does not hold, and the other parts go on."""
        began = time.monotonic()
        try:
            work()
        except Exception as error:
            self.check(name, False, f"{type(error).__name__}: {error}")
        print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)


def chromium() -> str:
    """Return Debian's Chromium; installed by apt where it is missing."""
    found = shutil.which("chromium")
    if found is None:
        print("installing chromium by apt-get, which needs root", file=sys.stderr, flush=True)
        for words in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", "-qq", *words], stdout=sys.stderr, check=False)
        found = shutil.which("chromium")
    if found is None:
        raise SystemExit("there is no chromium; install it, e.g. apt-get install chromium")
    return found


@contextmanager
def serving(place: Path | str, **env: str) -> Iterator[str]:
    """Serve a place; yields the address that opens the pages once."""
    command = [str(AGL), "dashboard", str(place), "--port", "0"]
    served = subprocess.Popen(
        command, stdout=subprocess.PIPE, encoding="utf-8", env={**os.environ, **env}, cwd=ROOT
    )
    try:
        assert served.stdout is not None
        line = served.stdout.readline()
        if "http" not in line:
            raise RuntimeError(f"agl dashboard did not start: {line!r}")
        yield line.rpartition(" ")[2].strip()
    finally:
        served.send_signal(signal.SIGTERM)
        try:
            served.wait(20)
        except subprocess.TimeoutExpired:
            served.kill()


class Tab:
    """A page of the browser, let in, that notes what the browser complains about."""

    def __init__(self, browser: Browser, address: str, checks: Checks, **options: Any) -> None:
        self.checks = checks
        self.context: BrowserContext = browser.new_context(viewport=WIDE, **options)
        self.context.add_init_script(HURT)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.base = address.partition("/open")[0]
        self.page.goto(address)

    def open(self, path: str, *, quiet: bool = True) -> Page:
        """Open a page; it must answer, and the browser must not complain."""
        self.complaints.clear()
        answer = self.page.goto(self.base + path)
        self.checks.pages.add(path)
        status = answer.status if answer else None
        self.checks.check(f"{path} opens", status == 200, status)
        if quiet:
            self.checks.check(f"{path}: no complaint", not self.complaints, self.complaints[:3])
        return self.page

    def links(self, containing: str) -> list[str]:
        """Return the addresses of the page's links."""
        every = """all => all.map(a => new URL(a.getAttribute('href'), location.href))
            .map(u => u.pathname + u.search)"""
        return [link for link in self.page.eval_on_selector_all("main a[href]", every) if containing in link]

    def close(self) -> None:
        self.context.close()


def every_page(tab: Tab, run: str, checks: Checks, screenshots: Path | None) -> None:
    """Open every kind of page of a trained run; axe, phone width and both themes on each."""
    base = f"/s/{run}/runs/{run}"
    tab.open(f"{base}/rollouts?batch=train/1&sort=-reward")
    whole(tab.page)
    rollout = tab.links("/rollouts/ro-")[0]
    tab.open(rollout)
    call, other = tab.links("/calls/")[0], tab.links("/difference")[0]
    tab.open(f"/s/{run}/resources")
    resource = tab.links("/resources/")[0]
    pages = {
        "runs": "/", "run": base, "rollouts": f"{base}/rollouts", "ledger": f"{base}/ledger",
        "configuration": f"{base}/configuration", "machines": f"/s/{run}/machines",
        "resources": f"/s/{run}/resources", "resource": resource, "rollout": rollout,
        "credit": f"{rollout}/credit", "forest": f"{rollout}/forest", "difference": other, "call": call,
        "token": f"{call}/tokens/0", "comparison": f"/compare?run={run}/{run}&run=hostile/hostile",
        "empty": "/s/empty/machines",
    }  # fmt: skip
    axe = Axe()
    for name, path in pages.items():
        for scheme in ("light", "dark"):
            tab.page.emulate_media(color_scheme=scheme)
            page = tab.open(path)
            found = axe.run(page).response["violations"]
            checks.axe += [f"{path} ({scheme}): {one['id']}, {len(one['nodes'])}" for one in found]
            if screenshots is not None and name in ("runs", "run", "rollouts", "rollout", "call", "forest"):
                page.wait_for_timeout(300)
                page.screenshot(path=screenshots / f"dashboard-{name}-{scheme}.png")
        tab.page.set_viewport_size(PHONE)
        wide = tab.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        checks.check(f"{path} fits a phone", wide <= 0, f"{wide} pixels too wide")
        if screenshots is not None and name == "run":
            tab.page.screenshot(path=screenshots / "dashboard-run-phone.png")
        tab.page.set_viewport_size(WIDE)
    tab.page.emulate_media(color_scheme="light")


def whole(page: Page) -> None:
    """Wait until a list has all its lines."""
    page.locator("main:not([data-again])").wait_for(timeout=240_000)


def drill_down(tab: Tab, run: str, checks: Checks) -> None:
    """From the list of runs to one token, by clicks and by keys."""
    page = tab.open("/")
    page.get_by_role("link", name=run).click()
    page.get_by_role("link", name="Rollouts", exact=True).first.click()
    page.get_by_label("Mode").select_option("train")
    page.get_by_label("Reward").fill(">=0")
    page.get_by_role("button", name="Show").click()
    whole(page)
    rows = page.locator("table.list tbody th a")
    checks.check("a filter keeps lines", rows.count() > 0 and "mode=train" in page.url, page.url)
    page.get_by_role("link", name="Reward").click()
    page.wait_for_url("**sort=-reward*", wait_until="load")
    checks.check("a heading sorts", page.locator("th[aria-sort=descending]").count() == 1)
    page.keyboard.press("/")
    checks.check("/ goes to the search", page.evaluate("document.activeElement.id") == "search")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/rollouts/ro-*")
    page.locator("figure.timeline svg a").first.click()
    page.wait_for_url("**/calls/*")
    token = page.locator("[data-tokens] a.t").first
    plain = token.evaluate("t => getComputedStyle(t).backgroundColor")
    page.get_by_label("mask").check()
    masked = token.evaluate("t => getComputedStyle(t).backgroundColor")
    checks.check("another colour for the mask", plain != masked, (plain, masked))
    token.click()
    page.locator("aside.explanation dl").wait_for(timeout=60_000)
    said = page.locator("aside.explanation").inner_text()
    checks.check("a token is explained", "baseline" in said and "weight" in said, said[:200])
    token.focus()
    page.keyboard.press("ArrowRight")
    checks.check(
        "arrows move among tokens", page.evaluate("document.activeElement.matches('a.t:nth-child(2)')")
    )
    page.keyboard.press("t")
    checks.check("t changes the theme", page.evaluate("document.documentElement.dataset.theme") == "dark")
    page.keyboard.press("t")
    tab.context.clear_cookies(name="agl_theme")
    checks.pages.add(page.url.replace(tab.base, ""))


def follow(tab: Tab, run: str, checks: Checks, training: subprocess.Popen[str]) -> None:
    """The page of a run that trains in another process: its steps grow without a reload."""
    page = tab.open(f"/s/{run}/runs/{run}")
    page.evaluate("window.stayed = true")
    seen: list[str] = []
    until = time.monotonic() + 420
    while time.monotonic() < until:
        said = page.locator("[data-part=lead]").inner_text()
        if not seen or seen[-1] != said:
            seen.append(said)
        if "finished" in said:
            break
        page.wait_for_timeout(250)
    checks.check("a live run is followed to its end", "finished" in seen[-1], seen[-3:])
    checks.check("step by step", len({s for s in seen if "step" in s}) >= 3, seen)
    checks.check("without a reload", page.evaluate("window.stayed === true"))
    checks.figures["live_changes"] = len(seen)
    checks.check("the training ended well", training.wait(120) in (0, 3), training.returncode)


def hostile(tab: Tab, fields: dict[str, str], checks: Checks) -> None:
    """Every page over the hostile store: which strings a page showed, and which did harm."""
    waiting, opened = ["/s/hostile/runs/hostile", "/s/hostile/machines", "/s/hostile/resources", "/",
                       "/compare?run=hostile/hostile&run=long/long"], set[str]()  # fmt: skip
    shown: set[str] = set()
    harmed: dict[str, str] = {}
    while waiting and len(opened) < 120:
        path = waiting.pop(0)
        if path in opened:
            continue
        opened.add(path)
        page = tab.open(path, quiet=False)
        page.eval_on_selector_all("details", "all => all.forEach(d => d.open = true)")
        page.eval_on_selector_all(".t, main a, .mark", "all => all.slice(0, 40).forEach(e => e.dispatchEvent("
                                  "new MouseEvent('mouseover', {bubbles: true})))")  # fmt: skip
        page.wait_for_timeout(30)
        html = page.content()
        shown |= {number for number in fields if number in html}
        for number in page.evaluate("window.hurts"):
            harmed[number] = path
        for number in page.eval_on_selector_all("[data-hurt]", "all => all.map(e => e.dataset.hurt)"):
            harmed[number] = path
        for link in page.eval_on_selector_all("a[href]", PROTOCOLS):
            if link not in ("http:", "https:"):
                harmed[f"link {link}"] = path
        for complaint in tab.complaints:
            checks.check(
                f"{path[:80]}: the browser blocks nothing", "Content Security" not in complaint, complaint
            )
        waiting += [link for link in tab.links("/s/hostile/") if link not in opened]
    checks.figures["xss_tried"] = len(shown)
    checks.figures["xss_passed"] = len(shown - set(harmed))
    checks.figures["xss_not_shown"] = sorted({fields[n] for n in set(fields) - shown})
    checks.check("no hostile string does harm", not harmed, {fields.get(n, n): p for n, p in harmed.items()})


def large(browser: Browser, stores: Path, checks: Checks) -> None:
    """10,000 and 100,000 rollouts: time to the first paint, and of lists on the server."""
    with serving(stores / "many-10k") as address:
        tab = Tab(browser, address, checks)
        page = tab.open("/s/many-10k/runs/many-10k/rollouts")
        paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
        checks.figures["first_paint_ms_10k"] = round(page.evaluate(paint) or -1)
        whole(page)
        checks.check("all 10,000 are listed", "10,000 rollouts" in page.locator("main").inner_text())
        tab.close()
    with serving(stores / "many-100k") as address:
        tab = Tab(browser, address, checks)
        began = time.monotonic()
        page = tab.open("/s/many-100k/runs/many-100k/rollouts")
        whole(page)
        checks.figures["index_seconds_100k"] = round(time.monotonic() - began, 1)
        checks.check("all 100,000 are listed", "100,000 rollouts" in page.locator("main").inner_text())
        times = {}
        for query in QUERIES:
            answer = tab.page.goto(f"{tab.base}/s/many-100k/runs/many-100k/rollouts{query}")
            assert answer is not None
            times[query] = float(answer.header_value("server-timing").partition("dur=")[2])
            checks.pages.add(f"/s/many-100k/runs/many-100k/rollouts{query}")
        checks.figures["list_ms_100k"] = times
        checks.figures["list_ms_100k_max"] = max(times.values())
        tab.close()


def long(tab: Tab, checks: Checks) -> None:
    """A call of 100,000 tokens, to its last one."""
    tab.open("/s/long/rollouts/ro-long-1")
    page = tab.open(tab.links("/calls/")[0])
    count = page.locator("[data-tokens] .t").count()
    checks.check("a window of tokens", 1_000 <= count <= 4_000, count)
    address = page.url.replace(tab.base, "")
    tab.open(f"{address}?response=49990")
    checks.check("the last tokens", page.locator("[data-tokens] a.t").count() == 10)


def seen_by(
    browser: Browser, stores: Path, run: str, training: Any, checks: Checks, shots: Path | None
) -> None:
    """All parts, in their order."""
    with serving(stores) as address:
        tab = Tab(browser, address, checks)
        stranger = browser.new_context().new_page()
        answer = stranger.goto(tab.base)
        checks.check("a stranger is not let in", answer is not None and answer.status == 401)
        checks.check("a used key opens nothing", (stranger.goto(address) or answer).status == 403)
        stranger.close()
        fields = json.loads((stores / "hostile.json").read_text(encoding="utf-8"))
        checks.part("a live run is followed", lambda: follow(tab, run, checks, training))
        checks.part("every page opens", lambda: every_page(tab, run, checks, shots))
        checks.part("down to a token", lambda: drill_down(tab, run, checks))
        checks.part("hostile strings", lambda: hostile(tab, fields, checks))
        checks.part("a call of 100,000 tokens", lambda: long(tab, checks))
        page = tab.open("/s/empty/runs/none/rollouts")
        checks.check("an empty store", "No rollout yet" in page.locator("main").inner_text())
        tab.close()
    checks.part("a store behind a URL", lambda: remote(browser, stores, checks))
    checks.part("views of the examples", lambda: views(browser, stores.parent / "examples", checks))
    checks.part("a teacher's gap", lambda: taught(browser, stores.parent / "taught", checks))
    checks.part("10,000 and 100,000 rollouts", lambda: large(browser, stores, checks))


def remote(browser: Browser, stores: Path, checks: Checks) -> None:
    """A store behind a URL, with its token and with another one."""
    with elsewhere.store_server(stores / "long" / "store.sqlite") as url:
        with serving(url, AGL_TOKEN=elsewhere.TOKEN) as address:
            tab = Tab(browser, address, checks)
            elsewhere.open_remote(tab, checks)
            tab.close()
        with serving(url, AGL_TOKEN="another") as address:
            tab = Tab(browser, address, checks)
            said = tab.page.locator("main").inner_text()
            checks.check("another token shows nothing, and why", "token" in said and "long" not in said, said)
            tab.close()


def views(browser: Browser, folder: Path, checks: Checks) -> None:
    """The journey of spider and the replay of werewolf, over runs of one step."""
    elsewhere.train_examples(folder)
    with serving(folder) as address:
        tab = Tab(browser, address, checks)
        elsewhere.open_views(tab, folder, checks)
        tab.close()


def taught(browser: Browser, folder: Path, checks: Checks) -> None:
    """The tokens of a distilled call, coloured by their gap to the teacher as `agl explain` has it."""
    words = [str(PYTHON), str(ROOT / "bench/dashboard/taught.py"), str(folder)]
    subprocess.run(words, check=True, stdout=sys.stderr)
    store = str(folder / "taught" / "store.sqlite")

    def ask(*words: str) -> Any:
        """Return the first JSON object of a command about the run."""
        told = subprocess.run(
            [str(AGL), *words, "--run", "taught", "--store", store, "--json"],
            check=True,
            capture_output=True,
            encoding="utf-8",
        )
        return json.loads(told.stdout.splitlines()[0])

    line = ask("rollouts", "taught")
    call = line["calls"][0]["call"]
    with serving(folder) as address:
        tab = Tab(browser, address, checks)
        page = tab.open(f"/s/taught/rollouts/{line['rollout']}/calls/{call}")
        key = page.locator(".scale.gap")
        checks.check("no key before it is chosen", not key.is_visible())
        page.get_by_label("teacher’s gap").check()
        checks.check("a key to the gap", key.is_visible() and "as likely" in key.inner_text())
        tokens, seen = page.locator("[data-tokens] a.t"), set()
        for n in range(tokens.count()):
            token = tokens.nth(n)
            colour = token.evaluate("t => getComputedStyle(t).backgroundColor")
            steps = [one for one in str(token.get_attribute("class")).split() if one.startswith("g")]
            seen.add((*steps, colour))
            if n < 2:
                found = ask("explain", f"{call}:{n}")["token"]
                gap = found["logprob_then"] - found["said"]["teacher"]
                title = str(token.get_attribute("title"))
                checks.check(f"the gap of token {n} is that of agl explain", f"gap {gap:+.4f}" in title, gap)
        checks.check(
            "a colour for each step of the gap", len({step for step, _ in seen}) == len(seen) > 1, seen
        )
        tokens.first.click()
        page.locator("aside.explanation dl").wait_for(timeout=60_000)
        told = page.locator("aside.explanation").inner_text()
        checks.check(
            "the explanation has the teacher and the hint", "teacher" in told and "hint" in told, told[:200]
        )
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            violations = Axe().run(page).response["violations"]
            checks.axe += [f"a teacher's gap ({scheme}): {one['id']}" for one in violations]
        tab.close()


def train(stores: Path) -> tuple[str, subprocess.Popen[str]]:
    """Begin a short run of calc_x in a process of its own; return its id once its store is there."""
    small = {"training.steps": STEPS, "output": stores, "environment.headroom_tasks": 8,
             "environment.val.args.limit": 24}  # fmt: skip
    command = [str(AGL), "train", "--config", "examples/calc_x/cpu.yaml"]
    command += [word for name, value in small.items() for word in ("--set", f"{name}={value}")]
    with (stores / "train.log").open("w", encoding="utf-8") as log:
        training = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, encoding="utf-8")
    until = time.monotonic() + 180
    while time.monotonic() < until and training.poll() is None:
        for file in stores.glob("*calc_x*/store.sqlite"):
            if on_record(file):
                return file.parent.name, training
        time.sleep(0.2)
    raise SystemExit(
        f"the training did not begin: {(stores / 'train.log').read_text(encoding='utf-8')[-2000:]}"
    )


def on_record(file: Path) -> bool:
    """Whether a store holds a run already."""
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
            return bool(connection.execute("SELECT count(*) FROM runs").fetchone()[0])
    except sqlite3.Error:
        return False


def main() -> int:
    """Do it all; the last line is JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--screenshots", type=Path, help="write pictures of the pages into this folder")
    given = parser.parse_args()
    program, checks = chromium(), Checks()
    with tempfile.TemporaryDirectory(prefix="agl-dashboard-") as folder:
        stores = Path(folder) / "runs"
        stores.mkdir()
        subprocess.run([str(PYTHON), str(ROOT / "bench/dashboard/stores.py"), str(stores)], check=True)
        run, training = train(stores)
        try:
            with sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=program, headless=True, args=FLAGS)
                seen_by(browser, stores, run, training, checks, given.screenshots)
                browser.close()
        finally:
            if training.poll() is None:
                training.send_signal(signal.SIGTERM)
                training.wait(60)
    checks.check("axe finds nothing", not checks.axe, checks.axe)
    tried = {name: checks.figures.pop(name, 0) for name in ("xss_tried", "xss_passed")}
    print(json.dumps({"pages": len(checks.pages), "passed": checks.held, "failed": checks.failed,
                      "axe_violations": len(checks.axe), **tried, **checks.figures}))  # fmt: skip
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
