"""Install commands of README, docs and messages: each brings every part of the suite that it needs.

`make install-lines` runs them in empty environments; this reads them, and tests the reader.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentlightning.plugins.manager import build, load
from agentlightning.plugins.suite import checkout, install_line

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "install_lines.py"
ADAPTERS = {name for name, folders in checkout()["adapter"].items() if f"/{name}[" in folders[-1]}
"""Adapters by the names of their folders; some come with another one."""


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install_lines", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["install_lines"] = module  # its NamedTuples look there
    spec.loader.exec_module(module)
    return module


READER = script()
LINES = READER.lines()


def test_the_commands_of_the_pages_and_the_messages_are_found() -> None:
    places = {line.where for line in LINES}
    assert {
        "README.md",
        "core/README.md",
        "plugins/local/README.md",
        "docs/contributing/write-an-adapter.md",
    } <= places
    assert {f"adapters/{name}/README.md" for name in ADAPTERS} <= places
    assert len([line for line in LINES if not READER.left_out(line)]) >= 12


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.where}: {line.text}"[:80])
def test_a_command_brings_all_that_it_needs_of_the_suite(line: Any) -> None:
    assert READER.missing(line.text) == []


def test_nothing_is_left_out_that_is_not_there() -> None:
    assert {line.where for line in LINES if READER.left_out(line)} == set(READER.LEFT_OUT)


@pytest.mark.parametrize("name", sorted(ADAPTERS))
def test_an_adapters_page_says_what_a_message_would(name: str) -> None:
    assert f"`{install_line('adapter', name)}`" in (ROOT / "adapters" / name / "README.md").read_text()


def test_every_adapter_and_driver_of_the_checkout_has_a_line() -> None:
    assert {path.parent.name for path in ROOT.glob("adapters/*/pyproject.toml")} == set(ADAPTERS)
    folders = {folder for names in checkout().values() for folders in names.values() for folder in folders}
    places = (folder.partition("[")[0] for folder in folders)
    named = {place.removeprefix("./plugins/") for place in places if place.startswith("./plugins/")}
    assert {path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")} == named
    extras = tomllib.loads((ROOT / "plugins" / "trackers" / "pyproject.toml").read_text())["project"]
    assert {*extras["optional-dependencies"]} == {*checkout()["tracker"], "all"} - {"console", "events"}
    for names in checkout().values():
        for folders in names.values():
            assert all((ROOT / folder.partition("[")[0] / "pyproject.toml").is_file() for folder in folders)


TABLES = {
    "recipe or algorithm": ("agl_recipes", "agl_algorithms"),
    "driver": ("agl_drivers",),
    "runner": ("agl_runners",),
    "store operation": ("agl_store_operations",),
    "command": ("agl_commands",),
    "tracker": ("agl_trackers",),
    "service": ("agl_run_services",),
    "curriculum": ("agl_curricula",),
    "task set": ("agl_task_sets",),
}
"""Kind of the messages → the hooks that register what is asked for by name."""


@pytest.mark.plugins
@pytest.mark.parametrize("kind", TABLES)
def test_what_a_plugin_of_the_suite_registers_by_name_has_a_line(kind: str) -> None:
    core, suite = build(discover=False), load()
    brought = {name for hook in TABLES[kind] for name in suite.table(hook).keys() - core.table(hook).keys()}
    assert brought and brought <= checkout()[kind].keys()


NAMED = re.compile(r"pip install[^`\n]*?[\s'\"](agl-[a-z-]+|agentlightning)(?:\[|[\s'\"=]|$)")


def test_no_message_sends_anybody_to_an_index_for_our_distributions() -> None:
    files = subprocess.run(
        ["git", "ls-files", "*.py", "*.sh", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    sources = [
        name
        for name in files
        if not name.startswith("CHANGELOG") and "tests" not in name.split("/") and (ROOT / name).exists()
    ]
    found = [
        f"{name}: {match[0]}"
        for name in sources
        for match in NAMED.finditer((ROOT / name).read_text(encoding="utf-8"))
    ]
    assert len(sources) > 300 and found == []


PAGE = """
Do `pip install -c constraints.txt ./core
"./adapters/langgraph[instruments]"` and not `pip list`.

```sh
$ make it   # first
$ pip install ./core \\
    ./plugins/local  # then
```

```python
x = 1
```
"""


def test_commands_are_read_from_blocks_and_from_text() -> None:
    assert list(READER.commands(PAGE)) == [
        ("pip install ./core      ./plugins/local", ("make it",)),
        ('pip install -c constraints.txt ./core "./adapters/langgraph[instruments]"', ()),
    ]


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ('pip install -c constraints.txt ./core "./adapters/langgraph[instruments]"', ["agl-langchain"]),
        ("pip install ./adapters/langgraph", ["agl-core", "agl-langchain"]),
        ("pip install ./core agl-langgraph", ["agl-langchain", "agl-langgraph"]),
        ('pip install ./core "./plugins/verl[cpu]"', ["agl-local"]),
        ('pip install "agl-core[testing]"', ["agl-core"]),
        ('pip install -e ./core -e "./adapters/autogen[instruments,mcp]"', []),
        ("pip install ./core ./plugins/{local,testing}", ["agl-cluster", "agl-gateway", "agl-programs"]),
        ("pip install openai", []),
    ],
)
def test_what_a_command_lacks_is_named(text: str, lacks: list[str]) -> None:
    assert READER.missing(text) == lacks


def test_every_folder_and_every_extra_that_a_command_names_is_there() -> None:
    found = {line.text: READER.absent(line.text) for line in READER.lines() if not READER.left_out(line)}
    assert len(found) > 30 and {text: wrong for text, wrong in found.items() if wrong} == {}
    text = 'pip install "./core[no-such]" ./plugins/{local,no-such} "./plugins/cluster[s3]"'
    assert READER.absent(text) == ["./core[no-such]", "./plugins/no-such"]


def test_what_pip_took_from_elsewhere_is_named() -> None:
    def one(name: str, **download: Any) -> dict[str, Any]:
        return {"metadata": {"name": name}, "download_info": download}

    report = [
        one("agl-core", url="file:///checkout/core", dir_info={}),
        one("agl_langchain", url="https://index/agl_langchain.whl", archive_info={}),
        one("openai", url="https://index/openai.whl", archive_info={}),
    ]
    assert READER._from_elsewhere(report) == ["agl_langchain (https://index/agl_langchain.whl)"]


def test_a_command_that_fails_is_told_with_what_it_said(tmp_path: Path) -> None:
    (tmp_path / "environment" / "bin").mkdir(parents=True)
    line = READER.Line("a page", "echo no such thing >&2; exit 3")
    why = READER._tried(line, tmp_path, tmp_path / "environment", tmp_path / "report.json")
    assert why == "status 3: no such thing"
