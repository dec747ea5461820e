"""What of an agent's changes to an image bears on a verifier: rules on paths, as the engine tells them."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from agent.batch.tampering import PATH, sorted_out


class Path(NamedTuple):
    path: str
    kind: str


KINDS = ("modified", "added", "deleted")
NAMES = st.sampled_from(["python3", "bash", "x", "conftest.py", "sitecustomize.py", "ld.so.preload", "libc.so.6"])
FOLDERS = st.sampled_from([*PATH, "/", "/etc", "/app", "/usr/lib/python3.11", "/usr/lib", "/root", "/srv/site-packages"])
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
    found = sorted_out(told)
    assert found.removed == (
        "/conftest.py", "/etc/ld.so.preload", "/usr/local/lib/python3.11/dist-packages/usercustomize.py",
    )  # fmt: skip
    assert found.restored == ("/usr/bin/python3", "/usr/bin/tac", "/usr/lib/python3.11/sitecustomize.py")
    assert found.programs == ("/usr/local/bin/cat",)
    assert found.touched == ("/usr/lib/python3.11/json/tool.py",)


@given(st.lists(PATHS, max_size=12, unique_by=lambda each: each.path))
def test_work_is_never_undone(told: list[Path]) -> None:
    """What was added is removed only where every program would read it; what goes back was of the image; no path counts twice."""
    found = sorted_out(told)
    kinds = {each.path: each.kind for each in told}
    assert all(kinds[path] == "added" for path in (*found.removed, *found.programs))
    assert all(kinds[path] != "added" for path in (*found.restored, *found.touched))
    every = [*found.removed, *found.restored, *found.programs, *found.touched]
    assert len(every) == len(set(every))
    assert not [path for path in every if path.startswith(("/app/", "/root/")) and "site-packages" not in path]
    programs = {each.path for each in told if each.path.rsplit("/", 1)[0] in PATH and each.kind != "added"}
    assert programs <= set(found.restored)
