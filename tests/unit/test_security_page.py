"""The page on security promises tests: each that it names exists, and each file of tests/security is named."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs/security.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.exhaustive
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))


@functools.cache
def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_every_test_that_is_named_exists(path: str, name: str) -> None:
    assert name in functions_of(TESTS / path)


def test_every_file_of_security_tests_is_named() -> None:
    there = {f"security/{path.name}" for path in (TESTS / "security").glob("test_*.py")}
    assert there <= {path for path, _ in NAMED}


@pytest.mark.parametrize("heading", ["Who is trusted with what", "Faults"])
def test_every_line_names_a_test(heading: str) -> None:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    for row in rows:
        assert "::test_" in row or "**out of scope**" in row, row
