"""Module paths that docs of version 0.1.0 named keep working for one release, with a warning at the line that imports."""

from __future__ import annotations

import importlib
import sys

import pytest

from agent.errors import AgentErrorCode
from sandbox.errors import ErrorCode, SandboxUnavailableError
from sandbox.moved import MOVED
from sandbox.pipe.replies import fault_of


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_path_warns_and_gives_the_names_of_the_new_one(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {MOVED[old]}; ") as warned:
        found = importlib.import_module(old)
    assert warned[0].filename == importlib.__file__
    new = importlib.import_module(MOVED[old])
    public = [name for name in vars(new) if not name.startswith("_")]
    assert public
    assert all(getattr(found, name) is getattr(new, name) for name in public)
    with pytest.raises(AttributeError):
        found.no_such_name  # noqa: B018


def test_a_line_that_imports_from_an_old_path_is_named() -> None:
    sys.modules.pop("sandbox.guest_environment", None)
    with pytest.warns(DeprecationWarning, match="sandbox.environment.sandboxed") as warned:
        exec("from sandbox.guest_environment import GuestEnvironment", {})
    assert warned[0].filename == "<string>"


def test_a_module_within_an_old_path_is_not_loaded_a_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its classes would not be those that the results of an environment have."""
    monkeypatch.delitem(sys.modules, "sandbox.results", raising=False)
    with pytest.warns(DeprecationWarning, match="sandbox.operations"), pytest.raises(ModuleNotFoundError):
        importlib.import_module("sandbox.results.commands")


def test_the_code_of_an_envelope_is_read_as_in_version_0_1() -> None:
    for read in (ErrorCode, lambda name: ErrorCode[name]):
        with pytest.warns(DeprecationWarning, match=r"ErrorCode\.read_only is now agent\.errors") as warned:
            found: object = read("read_only")
        assert found is AgentErrorCode.read_only
        assert warned[0].filename == __file__
    assert ErrorCode("timeout") is ErrorCode["timeout"] is ErrorCode.timeout
    for name in ("no_such_code", "__class__", None, 5):
        with pytest.raises(ValueError, match="is not a valid ErrorCode"):
            ErrorCode(name)  # type: ignore[arg-type]


def test_a_guest_gives_no_code_of_the_agent() -> None:
    with pytest.raises(SandboxUnavailableError):
        fault_of({"code": "read_only", "effects": "none", "fields": {}}, "write")
