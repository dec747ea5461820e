"""The rules of the house that a program can check: small rooms, typed functions, words for every code."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import hints
from sandbox.errors import ErrorCode
from sandbox.notices import HOST_NOTICES, NOTICES

ROOT = Path(__file__).parents[2]
PACKAGES = ("sandbox", "agent")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MOST_LINES, MEDIAN_LINES, FUNCTION_LINES = 350, 180, 35
# Functions that are longer and read better whole than in parts; a new one needs a reason, and this list stays short.
LONG_FUNCTIONS = {
    "agent/cli_agent.py:agent",  # a command with many options
    "sandbox/cli.py:run",  # a command with many options
    "sandbox/docker/container.py:create",  # one call with many settings
    "sandbox/docker/debian.py:_bootstrap",
    "sandbox/docker/engine.py:_answered",  # one clause for each way an engine fails
    "sandbox/docker/images.py:ensure_image",
    "sandbox/guest/calls.py:WorkerCall.run_helper",
    "sandbox/transport.py:Transport.request",  # one call with many settings
}
MOST_LONG_FUNCTIONS = 8
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc", "util", "helper"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def functions(path: Path) -> Iterator[tuple[str, Function]]:
    """Every function of a module with its dotted name."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield prefix + child.name, child
                yield from walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.")
            else:
                yield from walk(child, prefix)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), "")


def test_there_is_something_to_check() -> None:
    assert len(MODULES) > 80


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_are_small(path: Path) -> None:
    assert lines_of(path) <= MOST_LINES
    assert path.stem not in FORBIDDEN_NAMES


def test_most_rooms_are_smaller() -> None:
    sizes = [lines_of(path) for path in MODULES if lines_of(path) > 20]
    assert statistics.median(sizes) <= MEDIAN_LINES


def test_few_functions_are_long() -> None:
    long = {
        f"{path.relative_to(ROOT)}:{name}"
        for path in MODULES
        for name, node in functions(path)
        if node.end_lineno is not None and node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    }
    assert not long - LONG_FUNCTIONS
    assert len(LONG_FUNCTIONS) <= MOST_LONG_FUNCTIONS


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_function_says_its_types(path: Path) -> None:
    for name, node in functions(path):
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        arguments += [a for a in (node.args.vararg, node.args.kwarg) if a is not None]
        bare = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")]
        assert not bare, f"{name}: {bare}"
        assert node.returns is not None or node.name == "__init__", f"{name} does not say what it returns"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_and_public_class_says_what_it_is(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_is_used(code: ErrorCode) -> None:
    if code in hints._FAULTS:
        return
    text = f"ErrorCode.{code.name}"
    used = any(text in path.read_text(encoding="utf-8") for path in MODULES if path.name != "errors.py")
    guest = any(f'"{code.value}"' in path.read_text(encoding="utf-8") for path in (ROOT / "sandbox/guest").glob("*.py"))
    assert used or guest, f"nothing raises {code.value}"


def test_every_code_and_notice_is_explained() -> None:
    page = (ROOT / "docs/sandbox.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert {code.value for code in ErrorCode} | set(NOTICES) | set(HOST_NOTICES) <= rows


def test_no_path_of_a_machine_is_in_the_sources() -> None:
    homes = ("/" + "work/", "/" + "root/", "/home/" + "user")
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        assert not [home for home in homes if home in text], path
