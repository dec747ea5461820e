"""A path that could not be used is explained: the mode, the link, the missing part, and similar names."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.errors import ErrorCode
from sandbox.guest import kernel
from sandbox.guest.files import path_problems
from sandbox.guest.files.listing import list_folder
from sandbox.guest.files.reading import read
from sandbox.guest.files.tree import delete, make_dir, move
from sandbox.guest.files.writing import edit, write
from sandbox.guest.interaction.wait_for import FileProbe
from sandbox.guest.loop.context import Place
from sandbox.guest.protocol.faults import Fault
from sandbox.messages.faults import word_fault
from tests.guest.calls import RealCall, place_at
from tests.leaks import descriptors, left_open

USER = 1000


@pytest.fixture
def place() -> Iterator[Place]:
    """A place that another user than root can reach."""
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)
    made = place_at(base)
    yield made
    for folder, _, _ in os.walk(base):
        os.chmod(folder, 0o700)
    shutil.rmtree(base)


@pytest.fixture
def workspace(place: Place) -> Path:
    return Path(os.fsdecode(place.workspace))


def as_user(work: Callable[[], Any]) -> Any:
    """Return the Fault that ``work`` raises in a thread that accesses files as an unprivileged user, like the guest's workers."""
    caught: list[Any] = []

    def run() -> None:
        if os.getuid() == 0:
            kernel.act_on_files_as(USER, USER)
        try:
            caught.append(work())
        except Fault as fault:
            caught.append(fault)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return caught[0]


def give(path: Path) -> None:
    """Make the user the owner of everything in a tree."""
    if os.getuid() == 0:
        for folder, _, files in os.walk(path):
            for name in (folder, *(os.path.join(folder, file) for file in files)):
                os.chown(name, USER, USER, follow_symlinks=False)


def words(fault: Fault, operation: str) -> str:
    wording = word_fault(ErrorCode(fault.code), fault.fields, operation)
    return f"{wording.message} {wording.hint}"


HANDLERS = {
    "read": read,
    "write": write,
    "edit": edit,
    "list": list_folder,
    "delete": delete,
    "move": move,
    "make_dir": make_dir,
}


def refused(place: Place, operation: str, **args: Any) -> Fault:
    fault = as_user(lambda: HANDLERS[operation](RealCall(place, args)))
    assert isinstance(fault, Fault), fault
    return fault


@pytest.mark.parametrize(
    ("operation", "args", "part", "lacks", "advice"),
    [
        ("write", {"path": "docs/new.md", "content": "x"}, "docs", "write", "chmod u+wx docs"),
        ("write", {"path": "docs/guide.md", "content": "x"}, "docs", "write", "chmod u+wx docs"),
        ("write", {"path": "docs/a/b.md", "content": "x"}, "docs", "write", "chmod u+wx docs"),
        ("make_dir", {"path": "docs/a"}, "docs", "write", "chmod u+wx docs"),
        ("delete", {"path": "docs/guide.md"}, "docs", "write", "chmod u+wx docs"),
        ("move", {"source": "docs/guide.md", "target": "g.md"}, "docs", "write", "chmod u+wx docs"),
        ("move", {"source": "fixed.txt", "target": "docs/g.md"}, "docs", "write", "chmod u+wx docs"),
        ("delete", {"path": "tree", "recursive": True}, "tree/inner", "write", "chmod u+wx tree/inner"),
        ("write", {"path": "fixed.txt", "content": "x"}, "fixed.txt", "write", "chmod u+w fixed.txt"),
        ("edit", {"path": "fixed.txt", "old_text": "a", "new_text": "b"}, "fixed.txt", "write", "chmod u+w fixed.txt"),
        ("read", {"path": "secret.txt"}, "secret.txt", "read", "chmod u+r secret.txt"),
        ("list", {"path": "closed"}, "closed", "read", "chmod u+rx closed"),
        ("read", {"path": "closed/in.txt"}, "closed", "enter", "chmod u+x closed"),
    ],
)
def test_a_denied_path_names_whose_mode_forbids_it(
    place: Place, workspace: Path, operation: str, args: dict[str, Any], part: str, lacks: str, advice: str
) -> None:
    """A3: the mode of a folder or file in the workspace was not mentioned, and the advice was to use the workspace."""
    for name in ("docs/guide.md", "tree/inner/f", "fixed.txt", "secret.txt", "closed/in.txt"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text("a")
    give(workspace)
    for name, mode in {"docs": 0o555, "tree/inner": 0o555, "fixed.txt": 0o444, "secret.txt": 0, "closed": 0}.items():
        (workspace / name).chmod(mode)
    fault = refused(place, operation, **args)
    assert (fault.code, fault.fields["part"], fault.fields["lacks"]) == ("permission_denied", part, lacks)
    assert fault.fields["owned"] is True
    assert advice in words(fault, operation)


def test_a_folder_of_another_user_is_not_to_be_changed() -> None:
    fields = {
        "path": "/run/gamebox/x",
        "part": "/run/gamebox",
        "lacks": "write",
        "is_folder": True,
        "mode": "755",
        "owner": 0,
    }
    wording = word_fault(ErrorCode.permission_denied, {**fields, "owned": False}, "write")
    assert "mode 755 and belongs to root" in wording.message
    assert "chmod" not in wording.hint


def test_a_link_that_leads_out_is_named_with_its_target(place: Place, workspace: Path) -> None:
    """A4: 'docs/hosts' was reported as outside, although it is a link in the workspace."""
    (workspace / "docs").mkdir()
    (workspace / "docs/hosts").symlink_to("/etc/hosts")
    (workspace / "etc").symlink_to("/etc")
    direct, inner = refused(place, "read", path="docs/hosts"), refused(place, "read", path="etc/hosts")
    assert "it is a link to '/etc/hosts'" in words(direct, "read")
    assert "'etc' is a link to '/etc'" in words(inner, "read")
    assert "Use a path below" not in words(direct, "read") + words(inner, "read")


def test_an_absolute_path_that_means_the_workspace(place: Place, workspace: Path) -> None:
    (workspace / "src").mkdir()
    (workspace / "src/app.py").write_text("")
    assert "Did you mean 'src/app.py'" in words(refused(place, "read", path="/src/app.py"), "read")
    assert refused(place, "read", path="/etc/passwd").fields.get("near") is None


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("src/invoicer/pricng.py", "'src/invoicer/pricng.py' does not exist. Did you mean 'src/invoicer/pricing.py'?"),
        ("readme.md", "'readme.md' does not exist. Did you mean 'README.md'?"),
        ("src/invoice/pricing.py", "there is no 'src/invoice'. Did you mean 'src/invoicer/pricing.py'?"),
        ("src/invoice/other.py", "there is no 'src/invoice'. Did you mean 'src/invoicer'?"),
        ("invoicer/pricing.py", "there is no 'invoicer'. Did you mean 'src/invoicer/pricing.py'?"),
        ("src/x.py", "'src/x.py' does not exist. List 'src' to see"),
        ("nothing/at/all", "there is no 'nothing'. List the workspace to see"),
        ("broken", "'broken' is a link to 'gone.txt', which is missing."),
        ("README.md/part", "'README.md/part' does not exist: 'README.md' is a file."),
        (
            "none/../README.md",
            "The path leads through 'none', which does not exist, and back with '..'. Give the path without '..': 'README.md'.",
        ),
        ("none/../../x", "and back with '..'. Use a path below "),
    ],
)
@pytest.mark.parametrize("operation", ["read", "list"])
def test_a_missing_path_names_the_part_and_the_near_miss(
    place: Place, workspace: Path, path: str, said: str, operation: str
) -> None:
    """s02, parent_missing, case_differs: neither a similar name nor the missing part of the path was mentioned."""
    (workspace / "src/invoicer").mkdir(parents=True)
    (workspace / "src/invoicer/pricing.py").write_text("")
    (workspace / "README.md").write_text("")
    (workspace / "broken").symlink_to("gone.txt")
    assert said in words(refused(place, operation, path=path), operation)


def test_a_write_past_a_missing_folder_names_the_file(place: Place) -> None:
    """It said that '.' does not exist: the folder of the file, without the way through the missing one."""
    fault = refused(place, "write", path="none/../new.txt", content="x")
    assert "'none', which does not exist" in words(fault, "write")
    assert "Give the path without '..': 'new.txt'." in words(fault, "write")


def test_list_of_a_file_says_to_read_it(place: Place, workspace: Path) -> None:
    (workspace / "README.md").write_text("")
    wording = word_fault(ErrorCode.not_a_directory, refused(place, "list", path="README.md").fields, "list")
    assert wording.next_tool == "read"


def test_a_crowded_folder_and_long_names_cost_a_bounded_time(
    place: Place, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_problems, "NAMES", 50)
    for number in range(100):
        (workspace / (f"{number:03}" + "x" * 200)).touch()
    fields = refused(place, "read", path="y" + "x" * 200).fields
    assert len(fields["near"]) <= path_problems.MOST_SIMILAR


def test_nothing_is_left_open(place: Place, workspace: Path) -> None:
    (workspace / "a").mkdir()
    (workspace / "out").symlink_to("/")
    refused(place, "read", path="a/b")
    before = descriptors()
    for path in ("a/b", "out/etc", "/etc/x", "a/../c/d"):
        refused(place, "read", path=path)
    assert left_open(before, 30) == []


def test_waiting_for_a_file_does_not_explain_why_it_is_missing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each look would compare all names of the folder."""
    monkeypatch.setattr(path_problems, "explain", lambda *_, **__: pytest.fail("explained"))
    assert FileProbe(place, "none/yet", None).look() is None
    assert FileProbe(place, "none", "text").look() is None
