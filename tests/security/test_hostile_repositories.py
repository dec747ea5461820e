"""Every command that takes a repository, on repositories of strangers: nothing of the host is read, written or run.

C01 to C04, C10, C10n and C16 of the trials. The commands work with --local, in this process: what happens before and after a
sandbox is the same, and takes no engine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.cli.app import main
from agent.repo.git_folder import folders_of_git

from .hostile_repositories import (
    BUILDERS,
    EXECUTED,
    HEAVY,
    REFUSED,
    SECRET,
    Builder,
    canary,
    deep,
    folder_links,
    git,
    lazy_fetch,
    plain,
    remove_levels,
    state,
)

Command = Callable[[Path, Path, str], list[str]]


def agent_command(repo: Path, work: Path, script: str) -> list[str]:
    return ["agent", "look", "--repo", str(repo), "--local", "--script", script, "--apply"]


def agent_without_log(repo: Path, work: Path, script: str) -> list[str]:
    return [*agent_command(repo, work, script), "--no-log"]


def batch_command(repo: Path, work: Path, script: str) -> list[str]:
    (work / "tasks.jsonl").write_text(json.dumps({"id": "one", "task": "look", "repo": str(repo)}) + "\n")
    return ["batch", str(work / "tasks.jsonl"), "--local", "--script", script, "-o", str(work / "results")]


def with_history(repo: Path, work: Path, script: str) -> list[str]:
    return [*agent_without_log(repo, work, script), "--history"]


WITHOUT_HISTORY = ("embedded_bare", "linked_git_folder", "foreign_pointer", "pointer_that_proves_itself", "linked_submodule")
COMMANDS: tuple[Command, ...] = (agent_command, batch_command, with_history)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    canary(folder)
    for name in [name for name in os.environ if name.startswith(("GIT_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(folder))
    return folder


def carried_out(args: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(args)
    out = capfd.readouterr()
    assert "Traceback" not in out.err
    return int(ended.value.code or 0), out.out + out.err


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("builder", "command"),
    [*((builder, command) for builder in BUILDERS for command in COMMANDS), *((builder, agent_without_log) for builder in HEAVY)],
    ids=lambda value: value.__name__,
)
def test_nothing_of_the_host_is_read_written_or_run(
    builder: Builder, command: Command, tmp_path: Path, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    theirs, seen = tmp_path / "theirs", tmp_path / "seen"
    theirs.mkdir()
    repo = builder(theirs, home)
    (home / EXECUTED).unlink(missing_ok=True)  # by the git that made it
    script = tmp_path / "script.json"
    look = {"tool": "run", "args": {"command": f"mkdir -p {seen}; cp -a . {seen}; echo new > written.txt"}}
    script.write_text(json.dumps([look, {"tool": "finish", "args": {"summary": "done"}}]))
    before = state(home)
    args = command(repo, tmp_path, str(script))
    code, words = carried_out(args, capfd)
    assert state(home) == before
    if builder is deep:
        remove_levels(repo)
    if "--history" in args and "not the root of a git work tree" in words:
        assert builder.__name__ in WITHOUT_HISTORY
        return
    if builder.__name__ in REFUSED:
        assert REFUSED[builder.__name__] in words
        assert not seen.exists()
        return
    bare = builder.__name__ == "embedded_bare" and "--apply" in args
    assert code == int(bare), words
    assert not bare or "which git would treat as a repository" in words
    copied = [path for path in seen.rglob("*") if path.is_file() and not path.is_symlink()]
    assert (seen / "a.txt").read_text() == "one\n"
    assert not [path for path in copied if SECRET.encode() in path.read_bytes()]
    assert not [path for path in seen.rglob("*") if path.is_symlink() and os.path.isabs(os.readlink(path))]


def test_the_trap_of_git_is_one(tmp_path: Path, home: Path) -> None:
    """Without this the test above could hold because its repositories are harmless."""
    (tmp_path / "theirs").mkdir()
    repo = lazy_fetch(tmp_path / "theirs", home)
    for name in ("core.worktree", "core.excludesFile"):
        git(tmp_path, "config", "-f", str(repo / ".git/config"), "--unset", name)
    (home / EXECUTED).unlink(missing_ok=True)
    command = ["git", "-C", str(repo), "ls-files", "--cached", "--others", "-z"]
    subprocess.run(command, check=False, capture_output=True, timeout=60)
    assert (home / EXECUTED).exists()


def test_the_repository_is_the_work_tree_that_one_is_in(
    tmp_path: Path, home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """UX 5: --repo was required. The home folder and / are never taken unasked."""
    repo = plain(tmp_path)
    (repo / "sub/below").mkdir(parents=True)
    (tmp_path / "script.json").write_text(json.dumps([{"tool": "finish", "args": {"summary": "done"}}]))
    args = ["agent", "look", "--local", "--script", str(tmp_path / "script.json"), "--no-log"]
    monkeypatch.chdir(repo / "sub/below")
    code, words = carried_out(args, capfd)
    assert code == 0
    assert words.startswith(f"the repository is {repo}, the git work tree of this folder; --repo names another\n")
    assert f"into the sandbox: 1 file of {repo}" in words
    git(home, "init", "-q")
    (home / "sub").mkdir()
    for folder in (home, home / "sub", tmp_path):
        monkeypatch.chdir(folder)
        code, words = carried_out(args, capfd)
        assert code == 2
        assert "needs a repository, and none was named" in words


def test_a_folder_in_a_work_tree_does_not_get_the_history_of_its_submodules(tmp_path: Path, home: Path) -> None:
    """A .git file in a folder of strangers may name .git/modules/s of the work tree around it, which belongs to another folder."""
    (tmp_path / "work").mkdir()
    (tmp_path / "other").mkdir()
    work = plain(tmp_path / "work")
    git(work, "submodule", "--quiet", "add", str(plain(tmp_path / "other")), "s")
    theirs = work / "vendor/theirs"
    theirs.mkdir(parents=True)
    (theirs / ".git").write_text("gitdir: ../../.git/modules/s\n")
    assert folders_of_git(theirs) is None
    assert folders_of_git(work / "s") == ((work, ".git/modules/s"),) * 2


AROUND = """
import os, pathlib, sys
from agent.repo import git_folder
user = int(sys.argv[1])
if user: os.seteuid(user)
for name in sys.argv[2:]: print(git_folder.repository_around(pathlib.Path(name)), git_folder.find_root(pathlib.Path(name)))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")
def test_a_git_folder_of_another_user_makes_no_default_repository() -> None:
    """In a folder that all may write to, whoever makes .git first chose what the others copy; git calls it dubious ownership."""
    with tempfile.TemporaryDirectory() as name:
        shared = Path(name).resolve()
        shared.chmod(0o1777)
        git(shared, "init", "-q")
        for place in ("mine", "theirs", "pointer/sub"):
            (shared / place).mkdir(parents=True)
        git(shared / "theirs", "init", "-q")
        (shared / "pointer/sub/.git").write_text("gitdir: ../.git/modules/s\n")
        (shared / "pointer/.git/modules/s").mkdir(parents=True)
        (shared / "pointer/.git/modules/s/config").write_text("[core]\n\tworktree = ../../../sub\n")
        places = [shared / place for place in ("mine", "theirs", "pointer/sub")]

        def owned(owner: int, *paths: Path) -> None:
            for path in paths:
                for each in (path, *path.rglob("*")):
                    os.lchown(each, owner, owner)

        def around(user: int, **variables: str) -> list[list[str]]:
            command = [sys.executable, "-c", AROUND, str(user), *map(str, places)]
            environment = {**os.environ, **variables}
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            return [line.split() for line in done.stdout.splitlines()]

        _, theirs, sub = map(str, places)
        owned(1234, shared / ".git", places[1] / ".git", shared / "pointer/.git")
        assert around(0) == [["None", "None"], ["None", theirs], ["None", sub]]
        assert around(0, SUDO_UID="1234") == [[name, name], [theirs, theirs], [sub, sub]]
        owned(1234, shared / "theirs")
        assert around(0)[1] == [theirs, theirs]
        owned(4321, places[0], shared / "pointer/sub")
        assert around(4321) == [["None", "None"], ["None", theirs], ["None", sub]]
        owned(4321, places[1], shared / "pointer/.git")
        assert around(4321)[1:] == [[theirs, theirs], [sub, sub]]


def test_a_replay_reads_a_repository_like_the_others(
    tmp_path: Path, home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``gamebox runs replay --repo``, on the worst of them."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "good").mkdir()
    seen = tmp_path / "seen"
    command = f"rm -rf {seen}; mkdir {seen}; cp -a . {seen}"
    script = [{"tool": "run", "args": {"command": command}}, {"tool": "finish", "args": {"summary": "done"}}]
    (tmp_path / "script.json").write_text(json.dumps(script))
    carried_out(agent_command(plain(tmp_path / "good"), tmp_path, str(tmp_path / "script.json")), capfd)
    repo = folder_links(tmp_path / "theirs", home)
    before = state(home)
    code, words = carried_out(["runs", "replay", "last", "--repo", str(repo), "--local"], capfd)
    assert code in (0, 1), words
    assert state(home) == before
    assert (seen / "a.txt").exists()
    files = [path for path in seen.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_names_of_a_repository_are_shown_and_not_obeyed_by_the_terminal(
    tmp_path: Path, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """C20, in what is said of the files that are left out: a name can neither move the cursor nor pass for a line of ours."""
    repo = plain(tmp_path)
    (repo / "x\ninto the sandbox: nothing\x1b]0;title\x07").symlink_to("/etc/passwd")
    (tmp_path / "script.json").write_text(json.dumps([{"tool": "finish", "args": {"summary": "done"}}]))
    code, words = carried_out(agent_without_log(repo, tmp_path, str(tmp_path / "script.json")), capfd)
    assert code == 0
    assert "left out: x\\ninto the sandbox: nothing" in words
    assert "\x1b" not in words
    assert "\x07" not in words
