"""What people get who install Gamebox: the wheel, its metadata and its types."""

from __future__ import annotations

import email
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.timeout(300)

# What a type checker must know without being helped; it fails where a type is Any or unknown.
USER_CODE = """
from enum import StrEnum
from typing import assert_type

from agent import AgentRun
from sandbox import AsyncEnvironment, DockerEnvironment, Limits
from sandbox.operations import ChangesResult, EditResult, LogsResult, ProcessesResult, SearchResult

with DockerEnvironment(limits=Limits(memory_bytes=1 << 30)) as env:
    answer = env.run("ls", timeout_seconds=5)
    if answer:
        assert_type(answer.result.exit_code, int | None)
    else:
        assert_type(answer.code, StrEnum)
    assert_type(env.read("a.txt").unwrap().content, str)
    assert_type(env.search("x", glob="*.py").unwrap(), SearchResult)
    env.run("ls", timout_seconds=5)  # type: ignore[call-arg]
    env.read("a.txt", start=5)  # type: ignore[call-arg]


async def asynchronous(env: AsyncEnvironment) -> None:
    assert_type((await env.run(["ls"], timeout_seconds=5)).unwrap().exit_code, int | None)
    assert_type((await env.read("a.txt", start_line=2)).unwrap().content, str)
    assert_type((await env.edit("a.txt", "old", "new")).unwrap(), EditResult)
    assert_type((await env.logs("c1", follow=True)).unwrap(), LogsResult)
    assert_type((await env.processes()).unwrap(), ProcessesResult)
    assert_type((await env.changes("start")).unwrap(), ChangesResult)
    await env.read("a.txt", start=5)  # type: ignore[call-arg]
    await env.kill(5)  # type: ignore[arg-type]


def shown(run: AgentRun) -> str:
    assert_type(run.reason, str)
    return run.reason
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a virtual environment that has the wheel, and what it depends on from the one of these tests."""
    folder = tmp_path_factory.mktemp("user") / "venv"
    venv.create(folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # A .pth file in the folder that this names is not read, so this checkout itself is not found there.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin/python"


def test_the_wheel_carries_the_image_recipes(wheel: Path, installed: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    recipes = (ROOT / "images").glob("*/Dockerfile")
    assert {f"sandbox/_images/{path.relative_to(ROOT / 'images')}" for path in recipes} <= names
    assert not [name for name in names if name.startswith(("tests/", "docs/"))]
    assert "sandbox/guest/commands/launch/launcher.c" in names
    code = "from sandbox.docker.images import recipes, runtime; print(recipes.images_folder(), *runtime.guest_files())"
    done = subprocess.run(
        [installed, "-P", "-c", code], env={}, cwd=wheel.parent, capture_output=True, text=True, check=True
    )
    folder, *files = done.stdout.split()
    assert Path(folder).parts[-2:] == ("sandbox", "_images")
    assert Path(folder).is_relative_to(installed.parents[1])
    assert {f"gamebox_guest/{path.name}" for path in (ROOT / "sandbox/guest").glob("*.py")} <= set(files)


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_metadata_names_licence_readme_addresses_and_versions(wheel: Path) -> None:
    """Finding UX 11."""
    said = metadata(wheel)
    assert said["License-Expression"] == "Apache-2.0"
    assert "LICENSE" in said.get_all("License-File", [])
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert said["Description-Content-Type"] == "text/markdown"
    assert str(said.get_payload()).startswith("# Gamebox")
    assert {url.split(",")[0] for url in said.get_all("Project-URL", [])} >= {"Homepage", "Documentation", "Source"}
    classifiers = said.get_all("Classifier", [])
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)} <= set(classifiers)
    assert said["Author"] or said["Author-email"]


def test_the_pytest_plugin_is_installed_beside_the_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert {"gamebox_pytest.py", "sandbox/py.typed", "agent/py.typed"} <= set(archive.namelist())
        points = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "gamebox = gamebox_pytest" in archive.read(points).decode()


@pytest.mark.exhaustive
def test_mypy_knows_the_types_of_an_installed_gamebox(installed: Path, tmp_path: Path) -> None:
    """Finding UX 2."""
    (tmp_path / "user.py").write_text(USER_CODE)
    check = ["-m", "mypy", "--strict", "--python-executable", str(installed), "--cache-dir", "cache", "user.py"]
    done = subprocess.run([sys.executable, *check], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.exhaustive
def test_pyright_knows_the_types_of_an_installed_gamebox(installed: Path, tmp_path: Path) -> None:
    """Finding UX 2. The package of PyPI has the program with it, and is run by the machine's own node: nothing is downloaded."""
    spec = importlib.util.find_spec("pyright")
    assert spec is not None
    assert spec.origin is not None
    node = shutil.which("node")
    if node is None:
        (pytest.fail if os.environ.get("GAMEBOX_REQUIRE_ENGINE") == "1" else pytest.skip)("there is no node here")
    assert node is not None
    (tmp_path / "user.py").write_text(USER_CODE)
    settings = {"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": True, "include": ["user.py"]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    program = Path(spec.origin).with_name("dist") / "index.js"
    done = subprocess.run(
        [node, program, "--pythonpath", installed], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
