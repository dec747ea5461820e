"""A repository into the sandbox and back: what is copied, the diff, and what apply refuses."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.errors import AgentErrorCode
from agent.hub import default
from agent.job.job import Job, start
from agent.repo.applying import apply
from agent.repo.beneath import Folder
from agent.repo.changes import Change, changes, diff_text
from agent.repo.ignoring import Rules
from agent.repo.patterns import Work
from agent.repo.snapshot import FileState, Snapshot, stays_inside, take
from sandbox.docker.container.preflight import workspace_too_large
from sandbox.errors import ErrorCode, SandboxError
from sandbox.testing import FakeEnvironment


def git(repo: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-C", str(repo), *args],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout


def write(repo: Path, **files: str) -> None:
    for name, text in files.items():
        path = repo / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture(params=["git", "plain"])
def repo(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    write(folder, a_dot_py="a = 1\n", pkg__b_dot_py="b = 1\n", pkg__c_dot_txt="last line without end")
    (folder / ".gitignore").write_text("*.log\n/build/\n!keep.log\n")
    (folder / "pkg/.gitignore").write_text("!b.log\n*.tmp\n")
    write(folder, x_dot_log="", keep_dot_log="", pkg__b_dot_log="", pkg__y_dot_tmp="", build__out="", sub__build__in="")
    if request.param == "git":
        git(folder, "init", "-q")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "first")
    return folder


def worked(repo: Path, tmp_path: Path, work: Callable[[Path], object]) -> tuple[Snapshot, Path, list[Change]]:
    """Take a snapshot, let ``work`` change a copy of it, and compare."""
    snapshot = take(repo, tmp_path / "before")
    after = tmp_path / "after"
    shutil.copytree(snapshot.copy, after, symlinks=True)
    work(after)
    return snapshot, after, changes(snapshot, after)


def test_what_counts_is_what_gitignore_says(repo: Path) -> None:
    rules = Rules(repo)
    expected = {
        ".gitignore", "a.py", "keep.log", "pkg/.gitignore", "pkg/b.log", "pkg/b.py", "pkg/c.txt", "sub/build/in",
    }  # fmt: skip
    assert set(rules.files()) == expected
    new = [
        "n.py",
        "n.log",
        "build/n",
        "sub/build/n",
        "pkg/b.log",
        "pkg/n.tmp",
        "n.tmp",
        "q/__pycache__/n.pyc",
        ".git/x",
    ]
    assert rules.ignored(new) == {"n.log", "build/n", "pkg/n.tmp", "q/__pycache__/n.pyc", ".git/x"}


def test_the_copy_has_no_git_folder_and_no_links_out(repo: Path, tmp_path: Path) -> None:
    (repo / "in").symlink_to("pkg/b.py")
    (repo / "out").symlink_to("/etc/passwd")
    (repo / "up").symlink_to("../secret")
    (repo / "gone").symlink_to("nowhere")
    snapshot = take(repo, tmp_path / "copy")
    assert set(snapshot.left_out) == {"out", "up"}
    assert os.readlink(snapshot.copy / "in") == "pkg/b.py"
    assert not (snapshot.copy / ".git").exists()
    assert snapshot.files["gone"] == FileState("nowhere", link=True)


def test_a_repository_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("none", "file"):
        with pytest.raises(SandboxError) as caught:
            take(tmp_path / name, tmp_path / "copy")
        assert caught.value.code is ErrorCode.workspace_invalid


def rework(folder: Path) -> None:
    (folder / "a.py").write_text("a = 2\n")
    (folder / "pkg/c.txt").write_text("other line without end")
    (folder / "pkg/b.py").unlink()
    (folder / "new dir").mkdir()
    (folder / "new dir/é\n.txt").write_text("new\x0cpage\n\nend")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "empty").write_text("")
    (folder / "keep.log").chmod(0o755)
    (folder / "noise.log").write_text("ignored")
    (folder / "link").symlink_to("a.py")


def test_git_applies_the_diff_and_gets_the_same_tree(repo: Path, tmp_path: Path) -> None:
    snapshot, after, found = worked(repo, tmp_path, rework)
    other = tmp_path / "other"
    shutil.copytree(snapshot.copy, other, symlinks=True)
    git(other, "init", "-q")
    (tmp_path / "diff").write_text(diff_text(snapshot, after, found))
    git(other, "apply", str(tmp_path / "diff"))
    shutil.rmtree(other / ".git")
    (after / "noise.log").unlink()
    assert subprocess.run(["diff", "-r", "--no-dereference", other, after], check=False).returncode == 0
    assert os.access(other / "run.sh", os.X_OK)
    assert os.access(other / "keep.log", os.X_OK)


LINES = st.lists(st.sampled_from(["a", "b", "c", "", "\x0b", "d\r"]), max_size=12)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=LINES, after=LINES, ends=st.tuples(st.booleans(), st.booleans()))
def test_any_diff_of_text_can_be_applied(
    tmp_path_factory: pytest.TempPathFactory, before: list[str], after: list[str], ends: tuple[bool, bool]
) -> None:
    base = tmp_path_factory.mktemp("diff")
    (base / "repo").mkdir()
    (base / "repo/f").write_bytes(("\n".join(before) + "\n" * ends[0]).encode())
    wanted = ("\n".join(after) + "\n" * ends[1]).encode()
    snapshot, folder, found = worked(base / "repo", base, lambda f: (f / "f").write_bytes(wanted))
    if found:
        git(base / "repo", "init", "-q")
        (base / "diff").write_bytes(diff_text(snapshot, folder, found).encode())
        git(base / "repo", "apply", "--whitespace=nowarn", str(base / "diff"))
    assert (base / "repo/f").read_bytes() == wanted


def test_apply_makes_the_repository_what_it_became(repo: Path, tmp_path: Path) -> None:
    (repo / "a.py").chmod(0o640)
    snapshot, after, found = worked(repo, tmp_path, rework)
    apply(snapshot, after, found)
    assert (repo / "a.py").read_text() == "a = 2\n"
    assert (repo / "a.py").stat().st_mode & 0o777 == 0o640
    assert not (repo / "pkg/b.py").exists()
    assert os.access(repo / "run.sh", os.X_OK)
    assert os.readlink(repo / "link") == "a.py"
    assert not (repo / "noise.log").exists()
    again = take(repo, tmp_path / "again")
    assert changes(again, after) == []


def test_a_folder_that_became_empty_goes(repo: Path, tmp_path: Path) -> None:
    snapshot, after, found = worked(repo, tmp_path, lambda f: shutil.rmtree(f / "sub"))
    apply(snapshot, after, found)
    assert not (repo / "sub").exists()


def tree(folder: Path) -> dict[str, bytes | str]:
    return {
        p.relative_to(folder).as_posix(): os.readlink(p) if p.is_symlink() else p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_symlink() or p.is_file()
    }


def refused(repo: Path, snapshot: Snapshot, after: Path, found: list[Change]) -> str:
    before = tree(repo)
    with pytest.raises(SandboxError) as caught:
        apply(snapshot, after, found)
    assert caught.value.code is AgentErrorCode.apply_refused
    assert caught.value.hint
    assert tree(repo) == before
    return caught.value.message


def test_a_file_changed_on_the_host_refuses_everything(repo: Path, tmp_path: Path) -> None:
    snapshot, after, found = worked(repo, tmp_path, rework)
    (repo / "a.py").write_text("mine\n")
    assert "'a.py' has changed on the host since it was copied" in refused(repo, snapshot, after, found)


def test_a_file_that_appeared_or_went_on_the_host_refuses_everything(repo: Path, tmp_path: Path) -> None:
    snapshot, after, found = worked(repo, tmp_path, rework)
    (repo / "empty").write_text("mine")
    (repo / "pkg/c.txt").unlink()
    message = refused(repo, snapshot, after, found)
    assert "'empty' has been created" in message
    assert "'pkg/c.txt' has changed" in message


@pytest.mark.parametrize(
    "path", [".git/hooks/post-commit", "sub/.GIT/config", ".git./config", "git~1/config", "../x", "/x"]
)
def test_paths_that_no_sandbox_may_write(repo: Path, tmp_path: Path, path: str) -> None:
    snapshot, after, _ = worked(repo, tmp_path, lambda f: None)
    change = Change(path, None, FileState("0" * 64))
    assert "Nothing was written back" in refused(repo, snapshot, after, [change])


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "sub/../../outside", ""])
def test_links_that_lead_out_are_refused(repo: Path, tmp_path: Path, target: str) -> None:
    snapshot, after, _ = worked(repo, tmp_path, lambda f: None)
    change = Change("evil", None, FileState(target, link=True))
    assert "leads out" in refused(repo, snapshot, after, [change])


def test_links_that_lead_out_only_together_are_refused(repo: Path, tmp_path: Path) -> None:
    """Each of them stays inside by its text; the second goes through the first."""
    snapshot, after, _ = worked(repo, tmp_path, lambda f: None)
    (repo / "a/b").mkdir(parents=True)
    links = {"a/b/d": "../..", "e": "a/b/d/../outside.txt"}
    found = [Change(path, None, FileState(target, link=True)) for path, target in links.items()]
    for path, target in links.items():
        (after / path).parent.mkdir(parents=True, exist_ok=True)
        (after / path).symlink_to(target)
    assert "leads out of the repository through another link" in refused(repo, snapshot, after, found)
    loop = [Change("x", None, FileState("y", link=True)), Change("y", None, FileState("x", link=True))]
    assert "leads out of the repository through another link" in refused(repo, snapshot, after, loop)
    apply(snapshot, after, found[:1])
    assert (repo / "a/b/d").is_symlink()


def test_a_new_link_does_not_make_one_that_was_there_lead_out(repo: Path, tmp_path: Path) -> None:
    (repo / "a/b").mkdir(parents=True)
    (repo / "e").symlink_to("a/b/d/../outside.txt")
    (repo / "far").symlink_to(tmp_path / "a")
    (repo / "whole").symlink_to("a/./b")
    snapshot, after, found = worked(repo, tmp_path, lambda f: make_link(f / "a/b/d", "../.."))
    assert "'e' is a link that would change where it leads" in refused(repo, snapshot, after, found)
    (after / "e").unlink()
    apply(snapshot, after, changes(snapshot, after))
    assert (repo / "a/b/d").is_symlink()


def make_link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def test_what_cannot_be_put_back_is_kept(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder that the message named was removed at once, and with it the only copy."""

    def work(folder: Path) -> None:
        (folder / "a.py").write_text("a = 2\n")
        (folder / "pkg/b.py").write_text("b = 2\n")

    snapshot, after, found = worked(repo, tmp_path, work)
    replace = Folder.replace
    written: list[str] = []

    def failing(self: Folder, path: str, *rest: Any) -> None:
        if written:
            raise OSError(errno.EIO, "Input/output error")
        written.append(path)
        replace(self, path, *rest)

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(Folder, "replace", failing)
    with pytest.raises(SandboxError, match=r"could not be put back: .*a\.py") as raised:
        apply(snapshot, after, found)
    (kept,) = tmp_path.glob("gamebox-undo-*")
    assert str(kept / "0") in str(raised.value)
    assert (kept / "0").read_text() == "a = 1\n"


def test_a_folder_that_became_a_link_on_the_host_is_not_followed(repo: Path, tmp_path: Path) -> None:
    snapshot, after, found = worked(repo, tmp_path, lambda f: (f / "pkg/new.py").write_text("x"))
    outside = tmp_path / "outside"
    (repo / "pkg").rename(outside)
    (repo / "pkg").symlink_to(outside)
    assert "leads through 'pkg', a link" in refused(repo, snapshot, after, found)
    assert not (outside / "new.py").exists()


def test_a_fault_while_writing_puts_everything_back(repo: Path, tmp_path: Path) -> None:
    def work(folder: Path) -> None:
        (folder / "a.py").write_text("a = 2\n")
        (folder / "pkg/b.py").unlink()
        (folder / "zz").mkdir()
        (folder / "zz/new").write_text("x")

    snapshot, after, found = worked(repo, tmp_path, work)
    (repo / "zz").write_text("a file where a folder is needed")
    assert "Nothing was written back" in refused(repo, snapshot, after, found)


def test_what_was_skipped_on_the_way_back_is_not_taken_for_deleted(repo: Path, tmp_path: Path) -> None:
    snapshot, after, _ = worked(repo, tmp_path, lambda f: shutil.rmtree(f / "pkg"))
    assert {c.path for c in changes(snapshot, after, ("pkg",))} == set()
    assert {c.kind for c in changes(snapshot, after)} == {"deleted"}


@pytest.mark.parametrize(
    ("path", "target", "inside"),
    [("a", "b", True), ("a/b", "../c", True), ("a/b", "../../c", False), ("a", "..", False), ("a", "/b", False)],
)
def test_stays_inside(path: str, target: str, inside: bool) -> None:
    assert stays_inside(path, target) is inside


def test_a_link_of_the_host_is_no_way_into_git(tmp_path: Path) -> None:
    """C14: a committed link ``g -> ../proj/.git`` leads out by its text; what the agent wrote to ``g/hooks`` became a hook."""
    repo = tmp_path / "proj"
    repo.mkdir()
    (repo / "a").write_text("a")
    git(repo, "init", "-q")
    (repo / "g").symlink_to("../proj/.git")
    git(repo, "add", "-A")

    def work(folder: Path) -> None:
        (folder / "g/hooks").mkdir(parents=True)
        (folder / "g/hooks/pre-commit").write_text("#!/bin/sh\n")

    snapshot, after, found = worked(repo, tmp_path, work)
    assert snapshot.left_out == ("g",)
    assert "'g/hooks/pre-commit' leads through 'g', a link on the host" in refused(repo, snapshot, after, found)


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("g", ".git"), ("sub/g", "../.git/hooks"), ("g", ".GIT"), ("g", "git~1"), ("g", "x/../.git"), ("g", ".g\u200cit"),
        ("g", "t/hooks"),
    ],
)
def test_links_into_git_are_refused(repo: Path, tmp_path: Path, path: str, target: str) -> None:
    """C12 and C14: such a link, written back once, opens .git for the next run."""
    (repo / ".git").mkdir(exist_ok=True)
    (repo / "t").symlink_to(".git")
    snapshot, after, _ = worked(repo, tmp_path, lambda f: None)
    assert snapshot.left_out == ("t",)
    change = Change(path, None, FileState(target, link=True))
    assert "leads into .git" in refused(repo, snapshot, after, [change])


@pytest.mark.parametrize(
    "path",
    [".git", "a/.git", "sub/.Git/x", ".git /x", ".git...", "GIT~2/x", ".git::$INDEX_ALLOCATION/x", "a\\.git\\x", ".g\u200cit/x"],
)
def test_no_alias_of_git_is_written(repo: Path, tmp_path: Path, path: str) -> None:
    snapshot, after, _ = worked(repo, tmp_path, lambda f: None)
    assert "is in .git" in refused(repo, snapshot, after, [Change(path, None, FileState("0" * 64))])


def test_nothing_makes_or_changes_a_repository_of_git(repo: Path, tmp_path: Path) -> None:
    """C13: ``cd bare && git status`` on the host obeyed the config that was written back."""

    def new(folder: Path) -> None:
        write(folder, bare__HEAD="ref: refs/heads/x\n", bare__objects__x="", bare__refs__x="", bare__config="fsmonitor=x\n")

    snapshot, after, found = worked(repo, tmp_path, new)
    assert "which git would treat as a repository" in refused(repo, snapshot, after, found)
    shutil.rmtree(after)
    shutil.rmtree(snapshot.copy)
    new(repo)
    snapshot, after, found = worked(repo, tmp_path, lambda f: (f / "bare/config").write_text("fsmonitor=y\n"))
    assert "'bare/config' would be in 'bare', which git would treat" in refused(repo, snapshot, after, found)
    (repo / "bare/HEAD").unlink()
    (repo / "bare/objects/x").unlink()
    (repo / "bare/objects").rmdir()
    change = Change("bare/HEAD", None, FileState("0" * 64))
    more = [Change("bare/objects/x", None, FileState("0" * 64)), Change("bare/commondir", None, FileState("0" * 64))]
    for other in more:
        assert "which git would treat as a repository" in refused(repo, snapshot, after, [change, other])


def test_a_folder_that_the_agent_replaced_by_a_link_or_a_file_is_applied(repo: Path, tmp_path: Path) -> None:
    """C12d: everything was refused, as 'dir' had been created on the host since the copy."""

    def work(folder: Path) -> None:
        shutil.rmtree(folder / "pkg")
        (folder / "pkg").symlink_to("sub")
        (folder / "a.py").unlink()
        (folder / "a.py").mkdir()
        (folder / "a.py/b").write_text("b")

    (repo / "pkg/y.tmp").unlink()
    (repo / "pkg/empty/too").mkdir(parents=True)
    snapshot, after, found = worked(repo, tmp_path, work)
    apply(snapshot, after, found)
    assert os.readlink(repo / "pkg") == "sub"
    assert (repo / "a.py/b").read_text() == "b"


def test_a_folder_with_files_that_were_not_copied_is_not_replaced(repo: Path, tmp_path: Path) -> None:
    """C12d: the reason that is told is the true one."""

    def work(folder: Path) -> None:
        shutil.rmtree(folder / "pkg")
        (folder / "pkg").symlink_to("sub")

    snapshot, after, found = worked(repo, tmp_path, work)
    assert "'pkg' would replace a folder on the host that still contains files, such as 'pkg/y.tmp'" in refused(
        repo, snapshot, after, found
    )


def test_a_pipe_or_a_device_in_the_way_is_not_waited_for(repo: Path, tmp_path: Path) -> None:
    snapshot, after, found = worked(repo, tmp_path, lambda f: (f / "a.py").write_text("new"))
    (repo / "a.py").unlink()
    os.mkfifo(repo / "a.py")
    with pytest.raises(SandboxError, match="has changed on the host"):
        apply(snapshot, after, found)


def test_patterns_that_take_too_long_are_an_error_and_not_an_answer(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C14: a check that failed was taken for "nothing is ignored"."""
    snapshot, after, _ = worked(repo, tmp_path, lambda f: None)
    (after / "new").write_text("")
    monkeypatch.setattr(snapshot.rules, "_work", Work(0))
    with pytest.raises(SandboxError, match="take too long to read and to match"):
        changes(snapshot, after)


def test_what_does_not_fit_is_refused_before_it_is_copied(repo: Path, tmp_path: Path) -> None:
    """UX: --repo /tmp copied 7 GB before it failed, and named an inner path."""
    (repo / "pkg/large").write_bytes(bytes(3 << 20))
    (repo / "sub/more").write_bytes(bytes(1 << 20))
    with pytest.raises(SandboxError) as caught:
        take(repo, tmp_path / "copy", 2 << 20)
    assert caught.value.code is ErrorCode.no_space
    assert f"The repository {repo} is too large: its files take 4.0 MiB" in caught.value.message
    assert "the workspace of the sandbox has 2.0 MiB" in caught.value.message
    assert "The largest: pkg (3.0 MiB), sub (1.0 MiB)" in caught.value.message
    assert "--repo" in caught.value.hint
    assert not (tmp_path / "copy").exists()
    with (repo / "sparse").open("wb") as file:
        file.truncate(8 << 40)
    with pytest.raises(SandboxError) as caught:
        take(repo, tmp_path / "copy")
    assert caught.value.code is ErrorCode.host_disk_full
    assert "sparse (8192.0 GiB)" in caught.value.message


def test_a_repository_that_the_sandbox_finds_too_large_is_named(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UX: the error named a folder beside the log in place of --repo."""
    snapshot, environment = take(repo, tmp_path / "copy"), FakeEnvironment()

    def full() -> None:
        raise workspace_too_large(snapshot.copy, 1 << 20, 2 << 20)

    monkeypatch.setattr(environment, "start", full)
    agents = default()
    job = Job(task="t", repo=repo, brain=None, open_environment=lambda _: environment, spec=agents.load("coding"), hub=agents)
    with pytest.raises(SandboxError) as caught:
        start(job, environment, snapshot)
    assert caught.value.message.startswith(f"The repository {repo} takes 2.0 MiB")
    assert "--repo" in caught.value.hint


def test_pipes_sockets_and_devices_are_named_among_what_was_left_out(repo: Path, tmp_path: Path) -> None:
    """Review: links that are left out were named, these were not."""
    os.mkfifo(repo / "AGENTS.md")
    (repo / "below").mkdir()
    os.mkfifo(repo / "below/.gitignore")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(repo / "below/s"))
    (repo / "a.py").unlink()
    os.mkfifo(repo / "a.py")  # tracked in one of the two
    wanted = {
        "not copied: AGENTS.md is a pipe", "not copied: a.py is a pipe", "not copied: below/s is a socket",
        "below/.gitignore is not used: it is a pipe",
    }  # fmt: skip
    if (repo / ".git").is_dir():
        (repo / ".git/info").mkdir(exist_ok=True)
        (repo / ".git/info/exclude").unlink(missing_ok=True)
        os.mkfifo(repo / ".git/info/exclude")
        wanted.add(".git/info/exclude is not used: it is not a readable file of at most 256 KiB")
    problems = take(repo, tmp_path / "copy").problems
    assert wanted <= set(problems)
    assert len(problems) == len(set(problems))
