"""The rules of the house that a program can check: typed functions, docstrings, an explanation of every code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import AgentErrorCode
from sandbox.errors import ErrorCode
from sandbox.messages import faults as hints
from sandbox.messages.notices import HOST_NOTICES, NOTICES

pytestmark = pytest.mark.exhaustive
ROOT = Path(__file__).parents[3]
PACKAGES = ("sandbox", "agent")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc", "util", "helper"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


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


def test_modules_are_named_after_their_idea() -> None:
    assert not [str(path) for path in MODULES if path.stem in FORBIDDEN_NAMES]


def test_every_function_says_its_types() -> None:
    bare = []
    for path in MODULES:
        for name, node in functions(path):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            arguments += [a for a in (node.args.vararg, node.args.kwarg) if a is not None]
            bare += [
                f"{path}: {name}({a.arg})" for a in arguments if a.annotation is None and a.arg not in ("self", "cls")
            ]
            bare += [f"{path}: {name} ->"] if node.returns is None and node.name != "__init__" else []
    assert not bare


def test_every_module_and_public_function_has_a_docstring() -> None:
    missing = []
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        missing += [] if ast.get_docstring(tree) else [str(path)]
        public = [node for node in tree.body if isinstance(node, Function) and not node.name.startswith("_")]
        described = [node for node in public if not any(ast.unparse(each) == "overload" for each in node.decorator_list)]
        missing += [f"{path}: {node.name}" for node in described if not ast.get_docstring(node)]
    assert not missing


def test_every_code_is_used() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in MODULES if path.name != "errors.py")
    guest = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "sandbox/guest").rglob("*.py"))
    unused = [
        code.value
        for code in (*ErrorCode, *AgentErrorCode)
        if code not in hints._FAULTS and f"{type(code).__name__}.{code.name}" not in sources and f'"{code.value}"' not in guest
    ]
    assert not unused, "nothing raises these codes"


def test_every_code_and_notice_is_explained() -> None:
    page = (ROOT / "docs/reference/codes.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert {code.value for code in (*ErrorCode, *AgentErrorCode)} | set(NOTICES) | set(HOST_NOTICES) <= rows


def test_no_path_of_a_machine_is_in_the_sources() -> None:
    homes = ("/" + "work/", "/" + "root/", "/home/" + "user")
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        if path.match("sandbox/docker/container/profiles.py"):  # the home of a profile is the sandbox's
            text = text.replace('home="/home/' + 'user"', "").replace("home is /home/" + "user", "")
        assert not [home for home in homes if home in text], path
