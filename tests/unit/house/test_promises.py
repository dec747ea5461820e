"""docs/explanation/evidence.md links promises with tests: the words are on their page, the tests exist, and nothing is missing."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
DOCS = TESTS.parent / "docs"
EVIDENCE = (DOCS / "explanation/evidence.md").read_text(encoding="utf-8")
SECURITY = "explanation/security.md"
pytestmark = pytest.mark.exhaustive


def rows_of(section: str) -> list[tuple[str, str]]:
    """Return promise and tests of each row."""
    rows = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in section.splitlines() if line.startswith("| ")][1:]
    return [(promise.replace("\\|", "|"), tests) for promise, tests in rows]


PROMISES = {
    page: rows_of(text) for page, text in (part.split("\n", 1) for part in re.split(r"^## ", EVIDENCE, flags=re.MULTILINE)[1:])
}
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", EVIDENCE)))


@functools.cache
def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def one_line(text: str) -> str:
    return " ".join(text.replace("|", " ").split())


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_every_test_that_is_named_exists(path: str, name: str) -> None:
    there = functions_of(TESTS / path)
    assert name in there if name else there


@pytest.mark.parametrize("page", PROMISES)
def test_every_promise_is_on_its_page_and_has_a_test(page: str) -> None:
    text = one_line((DOCS / page).read_text(encoding="utf-8"))
    rows = PROMISES[page]
    assert rows
    assert not [promise for promise, tests in rows if one_line(promise) not in text]
    assert not [promise for promise, tests in rows if "/test_" not in tests]


def test_every_file_of_security_tests_is_named() -> None:
    there = {f"security/{path.name}" for path in (TESTS / "security").glob("test_*.py")}
    assert there <= {path for path, _ in NAMED}


@pytest.mark.parametrize(("heading", "cells"), [("Who is trusted with what", 2), ("Faults", 1)])
def test_every_row_of_the_security_page_has_a_test(heading: str, cells: int) -> None:
    section = (DOCS / SECURITY).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    known = {one_line(promise) for promise, _ in PROMISES[SECURITY]}
    for row in rows:
        promise = one_line(" | ".join(row.strip("| ").split(" | ")[:cells]))
        assert promise in known or "**out of scope**" in row, row


@pytest.mark.parametrize("path", [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda path: path.name)
def test_no_test_is_named_in_prose(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert "::test_" not in text or path.name == "evidence.md"
