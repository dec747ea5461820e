"""What of an agent's changes to an image bears on a verifier: rules on paths, as the engine tells them."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.batch.tampering import PATH, classify


class Path(NamedTuple):
    path: str
    kind: str


KINDS = ("modified", "added", "deleted")
NAMES = st.sampled_from(["python3", "bash", "x", "conftest.py", "sitecustomize.py", "ld.so.preload", "libc.so.6", "lib"])
FOLDERS = st.sampled_from([*PATH, "/", "/etc", "/app", "/usr/lib/python3.11", "/usr/lib", "/root", "/lib64", "/srv/site-packages"])
PATHS = st.builds(lambda folder, name, kind: Path(f"{folder.rstrip('/')}/{name}", kind), FOLDERS, NAMES, st.sampled_from(KINDS))


def test_each_kind_of_change() -> None:
    told = [
        Path("/etc", "modified"), Path("/etc/ld.so.preload", "added"), Path("/usr", "modified"), Path("/usr/bin", "modified"),
        Path("/usr/bin/python3", "modified"), Path("/usr/bin/tac", "deleted"), Path("/usr/local/bin/cat", "added"),
        Path("/conftest.py", "added"), Path("/app", "added"), Path("/app/conftest.py", "added"), Path("/etc/hosts", "modified"),
        Path("/usr/lib/python3.11/json/tool.py", "modified"), Path("/usr/lib/python3.11/new.py", "added"),
        Path("/usr/lib/python3.11/sitecustomize.py", "modified"), Path("/app/src/sitecustomize.py", "added"),
        Path("/usr/local/lib/python3.11/dist-packages/usercustomize.py", "added"),
    ]  # fmt: skip
    found = classify(told)
    assert found.removed == (
        "/conftest.py", "/etc/ld.so.preload", "/usr/local/lib/python3.11/dist-packages/usercustomize.py",
    )  # fmt: skip
    assert found.restored == ("/usr/bin/python3", "/usr/bin/tac", "/usr/lib/python3.11/sitecustomize.py")
    assert found.programs == ("/usr/local/bin/cat",)
    assert found.touched == ("/usr/lib/python3.11/json/tool.py",)


@given(st.lists(PATHS, max_size=12, unique_by=lambda each: each.path))
def test_work_is_never_undone(told: list[Path]) -> None:
    """What was added is removed only where every program would read it; what goes back was of the image; no path counts twice."""
    found = classify(told)
    kinds = {each.path: each.kind for each in told}
    assert all(kinds[path] == "added" for path in (*found.removed, *found.programs))
    assert all(kinds[path] != "added" for path in found.restored)
    assert all(kinds[path] != "added" or path.startswith("/lib") for path in found.touched)
    every = [*found.removed, *found.restored, *found.programs, *found.touched]
    assert len(every) == len(set(every))
    assert not [path for path in every if path.startswith(("/app/", "/root/")) and "site-packages" not in path]
    programs = {each.path for each in told if each.path.rsplit("/", 1)[0] in PATH and each.kind != "added"}
    assert programs <= set(found.restored)


def test_a_link_of_the_image_that_became_a_folder() -> None:
    """It is told of, with all that is in it; once it is a link again, neither it nor that is."""
    told = [
        Path("/lib64", "modified"), Path("/lib64/ld-linux-x86-64.so.2", "added"), Path("/bin", "modified"),
        Path("/bin/ls", "added"), Path("/lib", "modified"), Path("/lib32", "added"), Path("/old", "added"),
        Path("/library", "added"), Path("/usr", "modified"),
    ]  # fmt: skip
    found = classify(told)
    assert found.roots == ("/bin", "/lib", "/lib32", "/lib64")
    assert found.programs == ("/bin/ls",)
    assert found.touched == ("/lib", "/lib32", "/lib64/ld-linux-x86-64.so.2", "/usr")
    left = found.without(["/bin", "/lib", "/lib64"])
    assert (left.programs, left.touched, left.roots) == ((), ("/lib32", "/usr"), ("/lib32",))


@pytest.mark.parametrize(
    "path",
    [
        "/usr/lib/python3/dist-packages/sitecustomize/__init__.py", "/usr/lib/python3/dist-packages/sitecustomize",
        "/usr/lib/python3.11/sitecustomize.cpython-311-x86_64-linux-gnu.so", "/usr/lib/python3.11/usercustomize.pyc",
        "/root/.local/lib/python3.11/site-packages/usercustomize/__init__.abi3.so", "/usr/lib/python311.zip",
        "/usr/lib/python311.zip/sitecustomize.py", "/usr/lib/python3.11/__pycache__/sitecustomize.cpython-311.pyc",
    ],
)  # fmt: skip
def test_every_form_of_what_every_python_reads(path: str) -> None:
    assert classify([Path(path, "added")]).removed == (path,)
    assert classify([Path(path, "deleted")]).restored == (path,)


@pytest.mark.parametrize(
    "path",
    [
        "/app/sitecustomize.py", "/usr/lib/python3/dist-packages/sitecustomizer.py", "/app/python311.zip.txt",
        "/usr/lib/python3/dist-packages/sitecustomize/other.py",
    ],
)  # fmt: skip
def test_other_modules_are_left_alone(path: str) -> None:
    assert classify([Path(path, "added")]).removed == ()
