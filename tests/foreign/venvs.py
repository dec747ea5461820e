"""Virtual environments of foreign suites: one each in FOREIGN_DIR, made anew only if what it holds has changed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from .suite import Suite

ROOT = Path(__file__).parents[2]


class VenvError(Exception):
    """A virtual environment could not be made; the message has what the program said."""


def venv_of(suite: Suite, folder: Path) -> Path:
    """Return the Python of the suite's virtual environment, which is made if necessary. Raises VenvError."""
    venv = folder / "venvs" / (suite.venv or suite.name)
    python, stamp = venv / "bin/python", venv / "suite.stamp"
    gamebox = f"{ROOT}[{','.join(suite.extras)}]" if suite.extras else str(ROOT)
    wanted = "\n".join([suite.python, gamebox, *suite.packages, (ROOT / "pyproject.toml").read_text()])
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(venv, ignore_errors=True)
    _call([suite.python or sys.executable, "-m", "venv", str(venv)])
    # Gamebox is installed in place: a change to it is tried without another installation.
    _call([str(python), "-m", "pip", "install", "--quiet", *suite.packages, "-e", gamebox])
    stamp.write_text(wanted)
    return python


def modules_of(suite: Suite, folder: Path) -> Path:
    """Return a folder with the suite's program for Node and its packages, installed if necessary. Raises VenvError."""
    assert suite.node is not None
    place = folder / "node" / suite.node.name
    stamp, wanted = place / "suite.stamp", (suite.node / "package-lock.json").read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(suite.node / name, place)
        _call(["npm", "ci", "--prefix", str(place), "--ignore-scripts", "--no-audit", "--no-fund"])
        stamp.write_text(wanted)
    for each in suite.node.glob("*.mjs"):
        shutil.copy(each, place)
    return place


def module_version(modules: Path, name: str) -> str:
    """Return the installed version of a package for Node, with its name."""
    return f"{name} {json.loads((modules / 'node_modules' / name / 'package.json').read_text())['version']}"


def version_in(python: Path, requirement: str) -> str:
    """Return the installed version of the package that a requirement names, with its name."""
    name = requirement.partition("=")[0].partition("[")[0].partition(">")[0].partition("<")[0]
    shown = _call([str(python), "-c", f"import importlib.metadata as m; print(m.version({name!r}))"])
    return f"{name} {shown.strip()}"


def _call(command: list[str]) -> str:
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except FileNotFoundError as error:
        raise VenvError(f"{command[0]} is not installed.") from error
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if not line.startswith("WARNING")]
        raise VenvError("\n".join([f"{' '.join(command[:4])} failed:", *lines[-8:]]))
    return done.stdout
