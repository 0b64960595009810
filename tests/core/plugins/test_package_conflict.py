"""A foreign package called `agentlightning` is named, with the commands that mend it; ours never is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import _agl_main
from agentlightning.plugins import package_conflict

SOURCE = Path(_agl_main.__file__).parent


def distribution(folder: Path, name: str, version: str, *, files: tuple[str, ...] = ()) -> Path:
    """Write an installed distribution's metadata, and its ``files``, into ``folder``."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in (*files, f"{info.name}/METADATA")))
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("raise SystemExit('the foreign package was imported')\n")
    return info


def test_nothing_foreign(tmp_path: Path) -> None:
    assert package_conflict.find_conflict([str(tmp_path)]) is None
    assert package_conflict.find_conflict([str(SOURCE)]) is None


def test_a_foreign_distribution_is_named(tmp_path: Path) -> None:
    distribution(tmp_path, "agentlightning", "0.3.0", files=("agentlightning/__init__.py",))
    found = package_conflict.find_conflict([str(SOURCE), str(tmp_path)])
    assert found == package_conflict.PackageConflict("0.3.0", tmp_path / "agentlightning", installed=True)
    message = found.message()
    assert "version 0.3.0" in message and str(tmp_path / "agentlightning") in message
    assert f"{sys.executable} -m pip uninstall -y agentlightning\n" in message
    assert f"{sys.executable} -m pip install --force-reinstall --no-deps " in message


def test_a_foreign_distribution_that_wrote_over_our_files_is_named(tmp_path: Path) -> None:
    package = "agentlightning/__init__.py"
    distribution(tmp_path, "agl-core", "0.1.0", files=(package,))
    distribution(tmp_path, "agentlightning", "0.3.0", files=(package,))
    ours = (tmp_path / "agentlightning").resolve()
    found = package_conflict.find_conflict([str(tmp_path)], ours)
    assert found == package_conflict.PackageConflict("0.3.0", tmp_path / "agentlightning", installed=True)


def test_a_foreign_editable_install_is_named(tmp_path: Path) -> None:
    distribution(tmp_path / "site", "agentlightning", "0.2.9", files=("agentlightning.pth",))
    package = tmp_path / "checkout" / "agentlightning"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    found = package_conflict.find_conflict([str(tmp_path / "site"), str(package.parent)])
    assert found == package_conflict.PackageConflict("0.2.9", package, installed=True)


def test_a_folder_that_hides_ours_is_named(tmp_path: Path) -> None:
    package = tmp_path / "agentlightning"
    package.mkdir()
    (package / "__init__.py").touch()
    found = package_conflict.find_conflict([str(tmp_path), str(SOURCE)])
    assert found == package_conflict.PackageConflict("unknown", package, installed=False)
    assert found.message().endswith(f"remove or rename {package}")
    assert "pip" not in found.message()


def test_the_mending_command_names_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = distribution(tmp_path, "agl-core", "0.1.0")
    origin = {"url": "file:///home/me/my%20agents/core", "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(str(tmp_path))
    message = package_conflict.PackageConflict("0.3.0", tmp_path, installed=True).message()
    assert message.endswith("install --force-reinstall --no-deps -e '/home/me/my agents/core'")


def test_refuse_raises_and_says_how_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package_conflict.refuse_conflict()
    distribution(tmp_path, "agentlightning", "0.3.0", files=("agentlightning/__init__.py",))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(package_conflict.PackageConflictError, match=r"version 0\.3\.0"):
        package_conflict.refuse_conflict()


def run_command(*paths: Path) -> subprocess.CompletedProcess[str]:
    """Run `agl --help` with ``paths`` in front of everything installed."""
    front = f"import sys; sys.path[:0] = {[str(p) for p in paths]!r}; sys.argv = ['agl', '--help']"
    code = f"{front}; import _agl_main; _agl_main.main()"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )


def test_the_command_refuses_before_it_imports_the_foreign_package(tmp_path: Path) -> None:
    distribution(tmp_path, "agentlightning", "0.3.0", files=("agentlightning/__init__.py",))
    done = run_command(tmp_path, SOURCE)
    assert done.returncode == 2
    assert "the foreign package was imported" not in done.stderr
    assert done.stderr.startswith("agl: another package called 'agentlightning'")
    assert str(tmp_path / "agentlightning") in done.stderr


def test_the_command_starts_when_all_is_ours() -> None:
    done = run_command(SOURCE)
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout
