"""The import hook reports complete packages and leaves loaders, specs and errors alone."""

from __future__ import annotations

import importlib
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from agl_programs.inside import import_hook
from agl_programs.inside.import_hook import ImportWatcher, watched_root


class Site:
    """Packages of our own on the path, watched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notified: list[str] = []
        self.watcher = ImportWatcher(["pkg", "space", "zipped"], self.tell)

    def tell(self, name: str) -> None:
        self.notified.append(name)

    def write(self, name: str, text: str = "") -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    one = Site(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [one.watcher, *sys.meta_path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    known = set(sys.modules)
    importlib.invalidate_caches()
    yield one
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_a_package_is_reported_once_and_complete(site: Site) -> None:
    site.write("pkg/__init__.py", "from pkg import a\nfrom pkg.b import late\ndone = True")
    site.write("pkg/a.py", "import pkg.b")
    site.write("pkg/b.py", "late = 1")
    pkg = importlib.import_module("pkg")
    assert site.notified == ["pkg"] and pkg.done
    importlib.import_module("pkg.b")
    assert site.notified == ["pkg"]  # nothing was imported


def test_a_namespace_package_is_reported_by_its_modules(site: Site) -> None:
    site.write("space/graph.py")
    importlib.import_module("space.graph")
    assert site.notified == ["space.graph"]


def test_an_import_that_fails_raises_what_it_would(site: Site) -> None:
    site.write("pkg/__init__.py", "raise ZeroDivisionError('here')")
    with pytest.raises(ZeroDivisionError, match="here"):
        importlib.import_module("pkg")
    site.write("pkg/__init__.py", "# it is mended")
    importlib.invalidate_caches()
    importlib.import_module("pkg")
    assert site.notified[-1] == "pkg"
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'pkg\.missing'"):
        importlib.import_module("pkg.missing")


def test_loader_and_spec_stay_the_same(site: Site) -> None:
    site.write("pkg/__init__.py")
    pkg = importlib.import_module("pkg")
    assert pkg.__spec__ is not None and type(pkg.__loader__).__name__ == "SourceFileLoader"
    assert "exec_module" not in vars(pkg.__loader__)
    assert importlib.reload(pkg) is pkg


def test_modules_of_a_zip_file(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = site.folder / "all.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("zipped/__init__.py", "from zipped import one, two")
        file.writestr("zipped/one.py", "import zipped.two")
        file.writestr("zipped/two.py", "")
    monkeypatch.syspath_prepend(str(archive))
    importlib.import_module("zipped")
    assert site.notified[-1] == "zipped" and site.watcher._depth["zipped"] == 0


def test_threads_that_import_one_package(site: Site) -> None:
    site.write("pkg/__init__.py")
    for i in range(8):
        site.write(f"pkg/m{i}.py", "import threading")
    threads = [threading.Thread(target=importlib.import_module, args=(f"pkg.m{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(f"pkg.m{i}" in sys.modules for i in range(8))
    assert site.notified and site.watcher._depth["pkg"] == 0


def test_other_packages_are_not_reported(site: Site) -> None:
    site.write("other.py")
    importlib.import_module("other")
    assert site.notified == []


def test_a_fork_forgets_what_other_threads_import(site: Site) -> None:
    site.write("pkg/__init__.py", "import threading, hold\nhold.has.set(); hold.may.wait()")
    hold = ModuleType("hold")
    has, may = threading.Event(), threading.Event()
    vars(hold).update(has=has, may=may)
    sys.modules["hold"] = hold
    thread = threading.Thread(target=importlib.import_module, args=("pkg",))
    thread.start()
    has.wait()
    site.watcher._depth[threading.get_ident(), "space"] += 1
    try:
        assert {root for _, root in site.watcher._depth} == {"pkg", "space"}
        site.watcher._forked()
        assert {root for _, root in site.watcher._depth} == {"space"}  # what this thread is at
    finally:
        may.set()
        thread.join()
        del sys.modules["hold"]


def test_of_a_shared_name_only_the_package_below_is_watched(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else capture would begin in the middle of the program's own import of ``google.protobuf``."""
    assert watched_root("google.adk") == "google.adk" and watched_root("agents.tracing") == "agents"
    monkeypatch.setattr(import_hook, "SHARED", {"space"})
    site.watcher.roots = {watched_root("space.graph")}
    site.write("space/other.py")
    site.write("space/graph/__init__.py")
    site.write("space/graph/node.py")
    importlib.import_module("space.other")
    assert site.notified == []
    importlib.import_module("space.graph.node")
    assert site.notified == ["space.graph", "space.graph.node"]
