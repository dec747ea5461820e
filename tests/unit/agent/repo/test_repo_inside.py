"""The workspace of a sandbox is a git repository, made inside; nothing of its .git comes back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.repo.applying import apply
from agent.repo.beneath import Folder
from agent.repo.changes import changes, diff_text
from agent.repo.history import History
from agent.repo.inside import GIT, make_repository, repository_in
from agent.repo.snapshot import take
from sandbox import LocalEnvironment
from sandbox.envelope import Envelope
from sandbox.errors import SandboxError
from sandbox.operations import RunResult

SETTINGS = ("user.name=t", "user.email=t@example.com", "protocol.file.allow=always", "init.defaultBranch=main")


def git(repo: Path, *args: str) -> str:
    words = [word for setting in SETTINGS for word in ("-c", setting)]
    command = ["git", *words, "-C", str(repo), *args]
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


@pytest.fixture(params=["sha1", "sha256"])
def repo(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", f"--object-format={request.param}")
    for number in ("1", "2"):
        (folder / "a.txt").write_text(number)
        (folder / "kept.log").write_text(number)
        git(folder, "add", "-Af")
        git(folder, "commit", "-qm", f"commit {number}")
        git(folder, "tag", f"v{number}")
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "a.txt").write_text("3")
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.gitconfig").write_text("[user]\n\tname = The user\n[core]\n\tfsmonitor = touch PWNED\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    assert not list(tmp_path.rglob("PWNED"))


def started(folder: Path) -> LocalEnvironment:
    return LocalEnvironment(workspace=folder).start()


def run(environment: LocalEnvironment, command: str) -> str:
    return environment.run(command).unwrap().output


def test_git_works_on_one_commit_of_the_files(repo: Path, tmp_path: Path, home: Path) -> None:
    snapshot = take(repo, tmp_path / "copy")
    with started(snapshot.copy) as environment:
        assert make_repository(environment) == ""
        assert run(environment, "git status --short; git log --format=%s; git ls-files").splitlines() == [
            "The files that were copied into the sandbox", ".gitignore", "a.txt", "kept.log",
        ]  # fmt: skip
        assert "+new" in run(environment, "echo new > a.txt; git diff")
        assert run(environment, "git commit -qam second; git log --format=%s | head -1").strip() == "second"
        assert not run(environment, "ls .git/hooks/* 2>&-")


def test_the_commit_is_the_same_each_time(repo: Path, tmp_path: Path, home: Path) -> None:
    """A run that is replayed sees the same ids."""
    heads = set()
    for name in ("one", "two"):
        with started(take(repo, tmp_path / name).copy) as environment:
            make_repository(environment)
            heads.add(run(environment, "git rev-parse HEAD"))
    assert len(heads) == 1


def test_with_history_there_are_the_commits_and_neither_configuration_nor_hooks(repo: Path, tmp_path: Path, home: Path) -> None:
    git(repo, "gc", "-q")
    (repo / "b").write_text("b")
    git(repo, "add", "b")
    git(repo, "commit", "-qm", "loose")
    git(repo, "config", "core.fsmonitor", "touch PWNED; false")
    (repo / ".git/hooks/post-index-change").write_text("#!/bin/sh\ntouch PWNED\n")
    (repo / ".git/hooks/post-index-change").chmod(0o755)
    snapshot = take(repo, tmp_path / "copy", history=True)
    with started(snapshot.copy) as environment:
        assert make_repository(environment, history=True) == ""
        assert run(environment, "git log --format=%s; git tag; git status --short").splitlines() == [
            "loose", "commit 2", "commit 1", "v1", "v2", " M a.txt", "?? .gitignore",
        ]  # fmt: skip
        assert "fsmonitor" not in run(environment, "cat .git/config")
        assert not run(environment, "ls .git/hooks/* 2>&-")


def test_a_history_of_no_use_leaves_one_commit_and_is_said(repo: Path, tmp_path: Path, home: Path) -> None:
    """Alternates and partial clones: the objects are elsewhere, and are not looked for."""
    shared = tmp_path / "shared"
    git(tmp_path, "clone", "-q", "--shared", str(repo), str(shared))
    snapshot = take(shared, tmp_path / "copy", history=True)
    assert not (snapshot.copy / ".git/objects/info").exists()
    with started(snapshot.copy) as environment:
        said = make_repository(environment, history=True)
        assert said.startswith("the history cannot be used in the sandbox: ")
        assert "no commits" not in said
        assert len(run(environment, "git log --format=%s").splitlines()) == 1


@pytest.mark.parametrize("staged", [False, True])
def test_a_repository_without_commits_is_named_as_that(tmp_path: Path, home: Path, staged: bool) -> None:
    """Review: it said that git ended with 1."""
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "a.txt").write_text("1")
    if staged:
        git(folder, "add", "-A")
    with started(take(folder, tmp_path / "copy", history=True).copy) as environment:
        said = make_repository(environment, history=True)
        assert said == "the history cannot be used in the sandbox: the repository has no commits yet"
        assert len(run(environment, "git log --format=%s").splitlines()) == 1


def test_of_a_hostile_history_only_plain_files_of_its_kinds_are_copied(tmp_path: Path) -> None:
    repo, secret = tmp_path / "repo", tmp_path / "secret"
    secret.write_text("secret")
    (repo / ".git/objects/pack").mkdir(parents=True)
    (repo / ".git/refs/heads").mkdir(parents=True)
    (repo / ".git/HEAD").write_text("ref: refs/heads/main\n")
    for name in ("config", "hooks", "objects/info/alternates", "commondir", "refs/heads/lines", "refs/heads/a..lock "):
        (repo / ".git" / name).parent.mkdir(exist_ok=True)
        (repo / ".git" / name).write_text(f"{tmp_path}\nmore\n")
    for name in ("objects/pack/pack-" + "0" * 40 + ".pack", "refs/heads/link", "shallow", "refs/out"):
        (repo / ".git" / name).symlink_to(secret)
    (repo / ".git/objects/ab").symlink_to(tmp_path)
    os.mkfifo(repo / ".git/packed-refs")
    os.mkfifo(repo / ".git/refs/heads/pipe")
    (tmp_path / "copy").mkdir()
    with Folder(tmp_path / "copy") as target:
        History(repo).copy(target)
    assert [p.relative_to(tmp_path / "copy").as_posix() for p in (tmp_path / "copy").rglob("*") if not p.is_dir()] == [".git/HEAD"]
    with pytest.raises(SandboxError, match="not the root of a git work tree"):
        History(tmp_path)


def test_nothing_of_git_comes_back(repo: Path, tmp_path: Path, home: Path) -> None:
    snapshot = take(repo, tmp_path / "copy", history=True)
    (tmp_path / "work").mkdir()
    subprocess.run(["cp", "-a", f"{snapshot.copy}/.", tmp_path / "work"], check=True)
    with started(tmp_path / "work") as environment:
        make_repository(environment, history=True)
        environment.run("echo 4 > a.txt; git commit -qam evil; git config core.fsmonitor x").unwrap()
        environment.run("git init -q sub; echo b > sub/b").unwrap()
        answer = environment.download(".", tmp_path / "after", without=(GIT,)).unwrap()
    assert not list((tmp_path / "after").rglob(".git"))
    assert answer.skipped == ()
    found = changes(snapshot, tmp_path / "after", answer.skipped)
    assert [change.path for change in found] == ["a.txt", "sub/b"]
    assert ".git" not in diff_text(snapshot, tmp_path / "after", found).replace(".gitignore", "")
    head = git(repo, "rev-parse", "HEAD")
    apply(snapshot, tmp_path / "after", found)
    assert git(repo, "rev-parse", "HEAD") == head
    assert "fsmonitor" not in (repo / ".git/config").read_text()


def test_git_is_not_told_as_a_changed_file(repo: Path, tmp_path: Path, home: Path) -> None:
    """s05 of the envelopes: "files changed: 0 created, 1 modified, 0 deleted: ~ .git" after ``git status``."""
    with started(take(repo, tmp_path / "copy").copy) as environment:
        make_repository(environment)
        quiet = environment.run("sleep 0.1; git status; git add -A; git commit -q --allow-empty -m x")
        assert [notice.code for notice in quiet.notices if notice.code == "files_changed"] == []
        kept = environment.checkpoint().unwrap()
        environment.run("git status; git commit -q --allow-empty -m y").unwrap()
        assert environment.changes(kept.id).unwrap().summarised == {}
        assert environment.changes(kept.id, leftovers=True).unwrap().changes
        environment.run("echo 5 > a.txt; git add -A; git init -q other").unwrap()
        patch = environment.export_patch(since=kept.id).unwrap().patch
        assert b"a.txt" in patch
        assert b".git/" not in patch


def test_an_image_without_git_leaves_the_workspace_as_it_is_and_says_so(repo: Path, tmp_path: Path, home: Path) -> None:
    with started(take(repo, tmp_path / "copy").copy) as environment:
        environment.run("mkdir -p ~/bin; for f in sh bash rm ls; do ln -s $(command -v $f) ~/bin/$f; done").unwrap()
        environment.start()
        without = Without(environment)
        assert make_repository(without) == "the workspace is not a git repository: the image has no git"  # type: ignore[arg-type]
        assert not (tmp_path / "copy/.git").exists()
        assert "more than a third" in repository_in(environment, 4 << 20, 10 << 20)


class Without:
    """An environment in whose PATH there is no git."""

    def __init__(self, environment: LocalEnvironment) -> None:
        self._environment = environment

    def run(self, command: str, **options: Any) -> Envelope[RunResult]:
        return self._environment.run(f"PATH=$HOME/bin; {command}", **options)
