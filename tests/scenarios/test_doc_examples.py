"""Every example in Python of the pages, run as it stands there, on the real engine: what a page shows is true."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from .model_server import ModelServer, call

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
TESTED_TOOL = Path(__file__).parent / "tested_tool" / "tool"
# Their examples are tests, see below.
AS_TESTS = "docs/testing.md"


def examples(page: str) -> list[str]:
    """A page's examples."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


PAGES = [
    page
    for page in ("README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))))
    if examples(page)
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the library that the examples speak of."""
    library = tmp_path / "mylib"
    library.mkdir()
    for name in ("a", "b"):
        (library / f"{name}.py").write_text("what = 'old'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """What the examples call provider/name."""
    with ModelServer([call("finish", {"summary": "mended"})]) as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        yield server


BEFORE = """
import os as _os, sandbox as _sandbox

_os.environ["API_TOKEN"] = _os.environ["DEPLOY_KEY"] = "nobody's key"
env = spare = _sandbox.DockerEnvironment(limits=_sandbox.Limits(memory_bytes=512 << 20)).start()
"""
# Pages whose examples close sandboxes of their own called ``env``.
CLOSING = ("README.md", "docs/network.md")
# What holds after the examples of a page: further lines of the program, and a part of what it printed.
HOLDS = {
    "README.md": ("print((r.ok, str(r.code), r.hint))", "True 0 hi\n\n(False, 'path_not_found', 'List the workspace to"),
    "docs/state.md": ("assert \"+what = 'new'\" in open('result.patch').read()", "a.py"),
    "docs/sandbox.md": ("assert ran.running and ran.waiting_for.kind == 'stdin' and int(port)", "\nserved\n"),
    "docs/agents.md": ("assert run.status == 'finished', run", "mended"),
    "docs/isolation.md": ("", ""),
    "docs/network.md": ("assert 'API_TOKEN' in env.run('env').unwrap().output", "GET / HTTP/1.1"),
}


@pytest.mark.parametrize("page", [page for page in PAGES if page != AS_TESTS])
def test_an_example_runs(page: str, here: Path, model: ModelServer) -> None:
    """The examples of one page are one program, and ``env`` is a sandbox."""
    after, printed = HOLDS.get(page, ("", ""))
    again = "\nenv = spare\n" if page in CLOSING else "\n"
    text = again.join(examples(page)).replace('"work"', f'"doc-{uuid.uuid4().hex[:8]}"')
    program = (
        BEFORE + text.replace("provider/name", "openai/test") + f"\n{after}\nspare.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


def test_the_examples_of_tests_are_a_suite_that_passes(here: Path) -> None:
    shutil.copytree(TESTED_TOOL, here / "tool")
    for number, program in enumerate(examples(AS_TESTS)):
        named = re.match(r"# (\w+\.py)", program)
        (here / (named[1] if named else f"test_example_{number}.py")).write_text(program)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(here)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=here)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_all_pages_with_examples_are_known() -> None:
    """A page that is written later takes part by itself; one that loses its examples is missed."""
    assert {*HOLDS, AS_TESTS} <= set(PAGES)
