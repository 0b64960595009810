"""What a user installs: wheels that build, install into an empty environment, and say what they need."""

from __future__ import annotations

import email
import os
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = dict(os.environ)
"""The shell's, taken before the fixtures hide it: pip may need its index and proxy settings."""
PLACES = (
    ROOT,
    ROOT / "core",
    *sorted(ROOT.glob("adapters/*/")),
    *sorted(ROOT.glob("plugins/*/")),
)
MANIFESTS = [folder / "pyproject.toml" for folder in PLACES]
EXAMPLES = "agl_examples/files/"
"""What agl-examples carries to be copied: whole projects, with their own sources and tests."""
UNREACHABLE = ("Connection", "Max retries", "Network is unreachable", "Temporary failure in name resolution")


def run(*command: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    shell = ENVIRONMENT | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"} | env
    return subprocess.run(words, cwd=cwd, env=shell, capture_output=True, text=True, timeout=240, check=False)


def project(manifest: Path) -> dict[str, object]:
    return tomllib.loads(manifest.read_text())["project"]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every distribution's wheel, by name, built the way `make wheels` builds them."""
    pytest.importorskip("hatchling", reason="wheels are built with hatchling")
    folder = tmp_path_factory.mktemp("dist")
    done = run(ROOT / "scripts" / "wheels", folder, cwd=ROOT, PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    return {path.name.split("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}


def files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


@pytest.mark.slow
def test_every_distribution_has_a_wheel(wheels: dict[str, Path]) -> None:
    assert set(wheels) == {str(project(manifest)["name"]) for manifest in MANIFESTS}
    assert set(wheels) >= {"agl-suite", "agl-core", "agl-local", "agl-autogen"}


@pytest.mark.slow
def test_all_have_one_version_and_need_that_version_of_each_other(wheels: dict[str, Path]) -> None:
    from agentlightning import __version__

    for wheel in wheels.values():
        described = metadata(wheel)
        assert described["Version"] == __version__
        ours = [n for n in described.get_all("Requires-Dist", []) if n.startswith("agl-")]
        assert all(f"=={__version__}" in need for need in ours), ours


@pytest.mark.slow
def test_no_wheel_carries_tests_or_bytecode_and_each_carries_its_licence(wheels: dict[str, Path]) -> None:
    for name, wheel in wheels.items():
        carried = {f for f in files(wheel) if not f.startswith(EXAMPLES)}
        assert not [f for f in carried if {"__pycache__", "src", "tests"} & set(f.split("/"))], name
        assert any(f.endswith(".dist-info/licenses/LICENSE") for f in carried), name
        assert metadata(wheel)["License-Expression"] == "MIT"


@pytest.mark.slow
def test_typed_packages_say_so_and_the_umbrella_has_no_modules(wheels: dict[str, Path]) -> None:
    core = files(wheels["agl-core"])
    assert {"agentlightning/py.typed", "agentlightning/__init__.py", "_agl_main.py"} <= core
    assert "agl_local/py.typed" in files(wheels["agl-local"])
    assert "agl_autogen/py.typed" in files(wheels["agl-autogen"])
    assert all(".dist-info/" in f for f in files(wheels["agl-suite"]))


@pytest.mark.slow
def test_the_umbrellas_extras_pull_the_suite(wheels: dict[str, Path]) -> None:
    described = metadata(wheels["agl-suite"])
    assert set(described.get_all("Provides-Extra")) >= {"local", "autogen", "plot", "all", "demo"}
    needs = described.get_all("Requires-Dist")
    assert "agl-core==0.1.0" in needs
    demo = {n.partition(";")[0].strip().partition("=")[0] for n in needs if "extra == 'demo'" in n}
    assert demo == {"agl-autogen[instruments,mcp]", "agl-trackers[plot]", "agl-local"}


@pytest.mark.slow
def test_the_adapter_pulls_no_framework(wheels: dict[str, Path]) -> None:
    plain = [n for n in metadata(wheels["agl-autogen"]).get_all("Requires-Dist") if "extra ==" not in n]
    assert not [n for n in plain if n.startswith(("autogen", "openai", "mcp", "torch"))]


def test_licences_are_the_same_text() -> None:
    for manifest in MANIFESTS:
        assert (manifest.parent / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


@pytest.mark.nightly
def test_an_adapter_installs_into_an_empty_environment(wheels: dict[str, Path], tmp_path: Path) -> None:
    """`pip install --find-links dist agl-autogen`, and what it gives."""
    dist = wheels["agl-autogen"].parent
    assert run(sys.executable, "-m", "venv", "env", cwd=tmp_path).returncode == 0
    programs = tmp_path / "env" / "bin"
    install = [programs / "python", "-m", "pip", "install", "--quiet", "--no-compile"]
    done = run(*install, "--find-links", dist, "agl-autogen", cwd=tmp_path)
    if done.returncode != 0 and any(sign in done.stderr for sign in UNREACHABLE):
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    code = "import agl_autogen.instrumentor as a, agentlightning; print(agentlightning.__file__, a)"
    imported = run(programs / "python", "-c", code, cwd=tmp_path)
    assert imported.returncode == 0, imported.stderr
    assert imported.stdout.startswith(str(tmp_path / "env"))
    for command in ("agl", "agent-lightning"):
        shown = run(programs / command, "--help", cwd=tmp_path)
        assert shown.returncode == 0, shown.stderr
        assert "train" in shown.stdout
