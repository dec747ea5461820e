"""What the pages say can be pasted: their examples name nothing that is not imported or made on the same page."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox import DockerEnvironment

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = re.compile(r"^```(?:python|py)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = {
    path.relative_to(ROOT): examples
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if (examples := EXAMPLES.findall(path.read_text(encoding="utf-8")))
}


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page)) for page in PAGES])
def test_an_example_names_only_what_its_page_makes(page: Path) -> None:
    """The names ``urllib``, ``key``, ``IMAGE`` and others were left to the reader; ``env`` is a started sandbox everywhere."""
    options = ["--isolated", "--select", "F821", "--config", 'builtins=["env"]', "--output-format=concise"]
    check = [sys.executable, "-m", "ruff", "check", *options, "--stdin-filename", "examples.py", "-"]
    done = subprocess.run(check, input="\n".join(PAGES[page]), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_has_all_parameters_of_a_sandbox() -> None:
    """Review: cache= and pull= were missing."""
    page = (ROOT / "docs/sandbox.md").read_text(encoding="utf-8")
    shown = re.search(r"`DockerEnvironment\(([^)]*)\)` is a context manager", page)
    assert shown is not None
    parameters = inspect.signature(DockerEnvironment).parameters.values()
    assert shown[1].split(", ") == [each.name + ("=" if each.kind is each.KEYWORD_ONLY else "") for each in parameters]
