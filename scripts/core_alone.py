"""Proves that core stands alone: it trains, and its tests and those of each plugin pass with nothing else.

python scripts/core_alone.py                  all of it; the last line is JSON
python scripts/core_alone.py demo core audit  some parts

``demo``: wheels of core, the local driver and AutoGen's adapter in an empty environment train the agent of
``make demo``, and no module of another distribution is imported. ``core`` and each plugin's name: the tests
of that part in a copy of this environment from which every other distribution of the suite is removed. A
plugin brings those that its manifest requires, and those of its extra ``test``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
TESTS = {path.parent.name: path for path in sorted(ROOT.glob("plugins/*/tests"))}
DEMO = ("core", "plugins/local", "adapters/autogen")
"""The distributions that train the agent of ``make demo``."""
TRAIN = """
import sys
from agentlightning.cli import main
sys.argv[:] = ["agl", "train", "--config", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
rooms = {name.partition(".")[0] for name in sys.modules}
print("imported:", *sorted(name for name in rooms if name.startswith("agl_")), file=sys.stderr)
assert {name for name in rooms if name.startswith("agl_")} == {"agl_autogen", "agl_local"}
"""
IMPORT = """
import sys
import agentlightning, agentlightning.train.trainer
found = [name for name in sys.modules if name.startswith("agl_")]
assert not found, found
"""


def manifest(folder: Path) -> dict[str, object]:
    """Return the table ``project`` of a distribution."""
    found: dict[str, object] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    return found


FOLDERS = {
    str(manifest(path.parent)["name"]): path.parent
    for room in ("core", "plugins/*", "adapters/*")
    for path in sorted(ROOT.glob(f"{room}/pyproject.toml"))
}


def brings(distribution: str, *, tests: bool) -> set[str]:
    """Return the distributions of the suite that one needs, itself included; with those of its tests."""
    project = manifest(FOLDERS[distribution])
    extras = project.get("optional-dependencies", {})
    assert isinstance(extras, dict)
    needs = [*project.get("dependencies", []), *(extras.get("test", []) if tests else [])]  # type: ignore[misc]
    names = {re.split(r"[\[=<> ]", str(need))[0] for need in needs} & FOLDERS.keys()
    return {distribution}.union(*(brings(name, tests=False) for name in names - {distribution}))


def copy_of(environment: Path, kept: set[str], folder: Path) -> Path:
    """Copy an environment by hard links, of the suite only what is ``kept``; return its Python."""
    shutil.copytree(environment, folder, copy_function=os.link, symlinks=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    for distribution in FOLDERS.keys() - kept:
        module = distribution.replace("-", "_")
        for path in (*site.glob(f"{module}-*.dist-info"), site / module, site / f"_{module}.pth"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    return folder / "bin" / "python"


def tests_pass(name: str) -> bool | None:
    """Run the tests of core or a plugin with nothing else of the suite. ``None``: none of them run here,
    because all need an environment of their own.
    """
    distribution = "agl-core" if name == "core" else str(manifest(ROOT / "plugins" / name)["name"])
    kept = brings(distribution, tests=name != "core")
    place = ROOT / ".venvs"  # hard links stay on one disk
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="alone-", dir=place) as folder:
        python = copy_of(Path(sys.prefix), kept, Path(folder) / "env")
        where = ROOT / "tests" / "core" if name == "core" else TESTS[name]
        options = ["-m", "pytest", "-q", "-n", "4", "--dist", "worksteal", "-p", "no:cacheprovider"]
        command: list[str | Path] = [python, *options, where]
        print(f"{name}: tests with {' '.join(sorted(kept))}", file=sys.stderr, flush=True)
        code = subprocess.run(command, cwd=ROOT, stdout=sys.stderr).returncode
    return None if code == pytest.ExitCode.NO_TESTS_COLLECTED else code == 0


def demo() -> float:
    """Train the agent of ``make demo`` in an empty environment of wheels; return its reward after."""
    with tempfile.TemporaryDirectory(prefix="alone-") as made:
        folder = Path(made)
        subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
        python = folder / "env" / "bin" / "python"
        pip: list[str | Path] = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        places = [ROOT / part for part in DEMO]
        wheel: list[str | Path] = [*pip, "wheel", "--no-deps", "--wheel-dir", folder / "dist", *places]
        subprocess.run(wheel, check=True, stdout=sys.stderr)
        wheels = [str(path) for path in sorted((folder / "dist").glob("*.whl"))]
        wheels = [f"{path}[instruments,mcp]" if "agl_autogen" in path else path for path in wheels]
        subprocess.run(
            [*pip, "install", "-c", ROOT / "constraints.txt", *wheels], check=True, stdout=sys.stderr
        )
        subprocess.run([python, "-c", IMPORT], cwd=folder, check=True)
        shutil.copytree(ROOT / "examples" / "calc_x", folder / "examples" / "calc_x")
        config = folder / "examples" / "calc_x" / "cpu.yaml"
        described = yaml.safe_load(config.read_text(encoding="utf-8"))
        for name in ("headroom", "headroom_tasks"):  # scripted policies, which agl-testing serves
            del described["environment"][name]
        config.write_text(yaml.safe_dump(described), encoding="utf-8")
        command: list[str | Path] = [python, "-c", TRAIN, config, "--set", f"output={folder / 'runs'}"]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, encoding="utf-8")
    return float(json.loads(done.stdout.strip().splitlines()[-1])["reward_after"])


def main() -> int:
    """Run the parts that are named, all by default."""
    asked = sys.argv[1:] or ["demo", "core", *TESTS]
    unknown = sorted(set(asked) - {"demo", "core", *TESTS})
    if unknown:
        sys.exit(f"no such part: {', '.join(unknown)}; there are demo, core, {', '.join(TESTS)}")
    passed = {name: tests_pass(name) for name in asked if name != "demo"}
    report: dict[str, object] = {"reward_after": demo()} if "demo" in asked else {}
    plugins = {name: ok for name, ok in passed.items() if name != "core"}
    report |= {"plugins": len(plugins), "alone_ok": sum(ok is True for ok in plugins.values())}
    if "core" in passed:
        report["core_ok"] = passed["core"]
    failed = [name for name, ok in passed.items() if ok is False]
    not_here = [name for name, ok in passed.items() if ok is None]
    print(json.dumps(report | {"failed": failed, "not_here": not_here}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
