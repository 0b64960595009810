"""The template of an adapter, begun for another framework: it installs, is found, and keeps the contract."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "adapter_template"
NAMES = ("acme-agents", "--module", "acme_agents", "--title", "Acme Agents")


def run(*words: object, cwd: Path, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A Python of its own, which has the packages in ``site`` besides this environment's."""
    env = {
        **os.environ,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INDEX": "1",
        "PYTHONWARNINGS": "default",
    }
    env.pop("AGL_PLUGINS", None)
    if site is not None:
        env["PYTHONPATH"] = os.pathsep.join([str(site), *filter(None, [env.get("PYTHONPATH")])])
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an adapter for ``acme_agents``, and that framework beside it."""
    folder = tmp_path_factory.mktemp("begun")
    done = run(FOLDER / "new.py", *NAMES, "--into", folder, cwd=folder)
    assert done.returncode == 0, done.stderr
    framework = folder / "framework"
    framework.mkdir()
    for file in (FOLDER / "tinyagents").glob("tinyagents.py"):
        (framework / "acme_agents.py").write_text(file.read_text())
    manifest = (FOLDER / "tinyagents" / "pyproject.toml").read_text()
    named = manifest.replace("tinyagents.py", "acme_agents.py").replace('"tinyagents"', '"acme-agents"')
    (framework / "pyproject.toml").write_text(named)
    return folder


@pytest.fixture(scope="module")
def site(begun: Path) -> Path:
    """Both, installed into a folder."""
    pytest.importorskip("hatchling", reason="packages are built with hatchling")
    site = begun / "site"
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", site)
    done = run(*install, begun / "framework", begun / "acme-agents", cwd=begun)
    assert done.returncode == 0, done.stderr
    return site


def test_nothing_is_left_of_the_imaginary_framework(begun: Path) -> None:
    for path in (begun / "acme-agents").rglob("*"):
        if "__pycache__" in path.parts:  # another test has run the package
            continue
        assert "tiny" not in path.name.lower()
        assert path.is_dir() or "tinyagents" not in path.read_text().lower(), path
    assert (begun / "acme-agents" / "src" / "agl_acme_agents" / "py.typed").exists()


@pytest.mark.slow
def test_it_is_found_and_costs_nothing_until_it_is_used(begun: Path, site: Path) -> None:
    code = (
        "import sys; from agentlightning import plugins; spec = plugins.load().adapters['acme-agents'];"
        "assert spec.framework == 'acme_agents' and spec.requires == 'acme-agents >= 1, < 2';"
        "assert list(spec.entry_methods(int)) == [] and 'acme_agents' not in sys.modules;"
        "print(type(spec.instrumentor()).__name__)"
    )
    done = run("-c", code, cwd=begun, site=site)
    assert done.stdout.strip() == "AcmeAgentsInstrumentor", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("tests", ["exact_and_named", pytest.param("", marks=pytest.mark.nightly)])
def test_it_keeps_the_contract(begun: Path, site: Path, tests: str) -> None:
    """The tests of the contract whose names contain ``tests``."""
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", tests)
    done = run(*command, cwd=begun / "acme-agents", site=site)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "passed" in done.stdout and "failed" not in done.stdout


@pytest.mark.slow
def test_a_marked_agent_of_a_users_is_wrapped_where_the_adapter_says(begun: Path, site: Path) -> None:
    code = (
        "import acme_agents, agentlightning as agl\n"
        "@agl.agent(name='solver')\n"
        "class Mine(acme_agents.Agent): pass\n"
        "print(sorted(set(vars(Mine)) & {'run', 'stream', '_call_tool'}))"
    )
    assert run("-c", code, cwd=begun, site=site).stdout.strip() == "['run', 'stream']"


@pytest.mark.parametrize(
    ("title", "named"),
    [("smolagents", "Smolagents"), ("Google ADK", "GoogleADK"), ("DSPy", "DSPy"), ("x-y_z 2", "XYZ2")],
)
def test_a_title_makes_class_names(tmp_path: Path, title: str, named: str) -> None:
    done = run(FOLDER / "new.py", "acme", "--title", title, "--into", tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    switch = (tmp_path / "acme" / "src" / "agl_acme" / "instrumentor.py").read_text()
    assert f"class {named}Instrumentor(" in switch and title in switch
    assert f"class Test{named}(" in (tmp_path / "acme" / "tests" / "test_contract.py").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("acme", "--title", "3 agents"), "begins no class name"),
        (("Acme Agents",), "no name for an adapter"),
        (("acme", "--module", "a-b"), "cannot be imported"),
        (("taken",), "exists already"),
        (("acme", "--into", "file"), "cannot be written"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").touch()
    done = run(FOLDER / "new.py", *words, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken"]
