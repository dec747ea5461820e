"""Module paths that docs of version 0.1.0 named keep working for one release, with a warning at the line that imports."""

from __future__ import annotations

import importlib
import sys
import warnings

import pytest

from agent import moved as agent_moved
from agent.errors import AgentErrorCode
from sandbox import moved as sandbox_moved
from sandbox.errors import ErrorCode, SandboxUnavailableError
from sandbox.pipe.replies import fault_of

MOVED = {**sandbox_moved.MOVED, **agent_moved.MOVED}


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_path_warns_and_gives_the_names_of_the_new_one(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, old, raising=False)
    with warnings.catch_warnings():  # the package that it is in may be an old path, too
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module(old.rpartition(".")[0])
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


@pytest.mark.parametrize("statement", ["import agent.adapters.actions", "from agent.adapters import actions"])
def test_a_module_within_an_old_package_is_found_at_its_new_path(statement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent.contracts.actions import Action

    for old in ("agent.adapters.actions", "agent.adapters"):
        monkeypatch.delitem(sys.modules, old, raising=False)
    names: dict[str, object] = {}
    with pytest.warns(DeprecationWarning, match="agent.contracts"):
        exec(f"{statement}\nimport sys\nfound = sys.modules.get('agent.adapters.actions') or actions", names)
    assert getattr(names["found"], "Action") is Action  # noqa: B009


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
