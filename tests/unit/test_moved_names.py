"""Module paths that docs of version 0.1.0 named keep working for one release, with a warning at the line that imports."""

from __future__ import annotations

import importlib
import sys

import pytest

from sandbox.moved import MOVED


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
