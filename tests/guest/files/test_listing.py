"""Listing folders."""

from __future__ import annotations

import grp
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from sandbox.guest.files.listing import list_details, list_folder, status_of
from sandbox.guest.protocol.faults import Fault
from tests.guest.calls import RealCall, place_at
from tests.leaks import descriptors, left_open


def listed(base: Path, path: str = ".", **args: Any) -> dict[str, Any]:
    return list_folder(RealCall(place_at(base), {"path": path, **args}))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    workspace = tmp_path / "workspace"
    (workspace / "b/c").mkdir(parents=True)
    (workspace / "a").write_text("12345")
    (workspace / "b/c/deep").touch()
    (workspace / ".hidden").mkdir()
    (workspace / ".hidden/x").touch()
    (workspace / "l").symlink_to("/etc")
    os.mkfifo(workspace / "z")
    return workspace


def test_entries(tmp_path: Path, workspace: Path) -> None:
    assert listed(tmp_path) == {
        "path": ".",
        "entries": [
            {"path": ".hidden", "type": "directory"},
            {"path": "a", "type": "file", "size_bytes": 5},
            {"path": "b", "type": "directory"},
            {"path": "l", "type": "symlink", "target": "/etc"},
            {"path": "z", "type": "other"},
        ],
        "total_entries": 5,
        "truncated": False,
    }


def test_depth_and_hidden(tmp_path: Path, workspace: Path) -> None:
    deep = listed(tmp_path, depth=20)
    assert [e["path"] for e in deep["entries"]] == [".hidden", ".hidden/x", "a", "b", "b/c", "b/c/deep", "l", "z"]
    shown = listed(tmp_path, depth=2, hidden=False)
    assert [e["path"] for e in shown["entries"]] == ["a", "b", "b/c", "l", "z"]
    assert shown["total_entries"] == 5


def test_paths_of_another_root_are_absolute(tmp_path: Path, workspace: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/h").touch()
    assert listed(tmp_path, "../home")["entries"][0]["path"] == str(tmp_path / "home/h")
    assert listed(tmp_path, "b")["entries"][0]["path"] == "b/c"


def test_bounds(tmp_path: Path, workspace: Path) -> None:
    for n in range(50):
        (workspace / f"b/{n:02}").touch()
    result = listed(tmp_path, "b", max_entries=7)
    assert len(result["entries"]) == 7
    assert (result["total_entries"], result["truncated"]) == (51, True)


def test_a_name_that_is_not_utf8(tmp_path: Path, workspace: Path) -> None:
    with open(os.fsencode(workspace) + b"/b/\xff", "wb"):
        pass
    assert "b/\ufffd" in [e["path"] for e in listed(tmp_path, "b")["entries"]]


@pytest.mark.parametrize(
    ("path", "code"),
    [("a", "not_a_directory"), ("none", "path_not_found"), ("l", "path_outside_roots"), ("z", "not_a_directory")],
)
def test_refusals(tmp_path: Path, workspace: Path, path: str, code: str) -> None:
    with pytest.raises(Fault) as caught:
        listed(tmp_path, path)
    assert caught.value.code == code


def test_no_descriptor_is_left_open(tmp_path: Path, workspace: Path) -> None:
    listed(tmp_path)
    before = descriptors()
    for _ in range(20):
        listed(tmp_path, depth=20, max_entries=1)
        with pytest.raises(Fault):
            listed(tmp_path, "a")
    assert left_open(before, 30) == []


def test_sockets_are_other(tmp_path: Path, workspace: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(workspace / "b/s"))
    assert {"path": "b/s", "type": "other"} in listed(tmp_path, "b")["entries"]


def test_details_are_those_of_stat(tmp_path: Path, workspace: Path) -> None:
    os.setxattr(workspace / "a", "user.e2b.author", b"me")
    found = list_details(RealCall(place_at(tmp_path), {"path": ".", "depth": 2, "max_entries": 100}))
    each = {entry["path"]: entry for entry in found["entries"]}
    assert list(each) == [".hidden", ".hidden/x", "a", "b", "b/c", "l", "z"]
    assert found["truncated"] is False
    assert each["a"] == status_of(RealCall(place_at(tmp_path), {"path": "a"}))
    assert (each["a"]["size_bytes"], each["a"]["attributes"]) == (5, {"user.e2b.author": "me"})
    assert each["a"]["group"] == grp.getgrgid(os.getgid()).gr_name
    assert (each["l"]["type"], each["l"]["link_target"]) == ("symlink", "/etc")
    few = list_details(RealCall(place_at(tmp_path), {"path": ".", "depth": 1, "max_entries": 2}))
    assert (len(few["entries"]), few["truncated"]) == (2, True)


def test_attributes_beyond_the_bounds_are_left_out(tmp_path: Path, workspace: Path) -> None:
    for number in range(70):
        os.setxattr(workspace / "a", f"user.n{number}", b"")
    assert len(status_of(RealCall(place_at(tmp_path), {"path": "a"}))["attributes"]) == 64
