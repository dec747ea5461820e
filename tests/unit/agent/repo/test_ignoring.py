"""What counts of a repository is what git itself would list, though git is not run: by its index, patterns and folders."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.repo.ignoring import Rules
from agent.repo.index import IndexUnreadableError, parse_index
from agent.repo.patterns import MOST_WORK, Patterns, TooMuchWorkError, Work
from sandbox.errors import SandboxError


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without any configuration of git."""
    folder = tmp_path_factory.mktemp("home")
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / ".config"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return folder


SETTINGS = ("user.name=t", "user.email=t@example.com", "protocol.file.allow=always")


def git(repo: Path, *args: str, text: str | None = None) -> str:
    given = None if text is None else os.fsencode(text)
    options = [word for setting in SETTINGS for word in ("-c", setting)]
    done = subprocess.run(["git", *options, "-C", str(repo), *args], check=False, capture_output=True, input=given)
    assert done.returncode in (0, 1), done.stderr
    return os.fsdecode(done.stdout)


def fill(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)


def listed_by_git(repo: Path) -> list[str]:
    listed = git(repo, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    return sorted({path for path in listed if path and ((repo / path).is_symlink() or (repo / path).is_file())})


PATHS = (
    "a", "b.py", "foo", "foo.log", "dir/foo", "dir/a", "dir/b.py", "dir/sub/foo", "dir/sub/b.log", "x/dir/a", "x/y/z/foo",
    "x/y/b.py", "a b", "#x", "!y", "[z]", "back\\slash", "é", "trail ", "-n", "foo/bar/baz", "1", "ab", "aXb", "a.b.c",
)  # fmt: skip
PATTERNS = (
    "*.log", "/a", "a", "foo/", "dir/", "/dir", "dir/*", "dir/**", "**/foo", "x/**/foo", "x/**", "*", "!b.py", "!dir/", "**",
    "**/", "/*", "!/dir", "dir/sub/", "\\#x", "#x", "\\!y", "!y", "[[]z]", "[a-b]", "[!a]", "[^a]*", "[]z]*",
    "back\\\\slash", "back\\slash", "trail ", "trail\\ ", "a b  ", "?", "??", "a?b", "a*b", "*b*", "**b", "x/*/z",
    "x/**/**/foo", "/**/b.py", "a/", "[[:digit:]]", "[[:alpha:]]b", "[", "a\\", "/", "//", "foo//bar", "foo/bar", "-n", "é",
    "*.p[x-z]", "*.*.*", "x/y/*", "!x/y/b.py", "dir/./a", "[z-a]", "a.b.c", "\r", "foo\r",
)  # fmt: skip


@pytest.mark.exhaustive
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    root=st.lists(st.sampled_from(PATTERNS), max_size=5), below=st.lists(st.sampled_from(PATTERNS), max_size=3),
    tracked=st.lists(st.sampled_from([p for p in PATHS if p != "foo/bar/baz"]), max_size=3),
)  # fmt: skip
def test_the_same_files_as_git(
    tmp_path_factory: pytest.TempPathFactory, root: list[str], below: list[str], tracked: list[str]
) -> None:
    repo = tmp_path_factory.mktemp("repo")
    fill(repo, *(path for path in PATHS if path != "foo"))
    (repo / ".gitignore").write_text("\n".join(root))
    (repo / "dir/.gitignore").write_text("\n".join(below) + "\n")
    git(repo, "init", "-q")
    if tracked:
        git(repo, "add", "-f", "--", *(path for path in tracked if path != "foo"))
    rules = Rules(repo)
    assert rules.files() == listed_by_git(repo)
    new = ["new", "new.log", "dir/new", "dir/sub/new/foo", "x/new/foo", "foo/new", "x/y/z/new", "q/dir/sub/n"]
    ignored = {path for path in git(repo, "check-ignore", "--stdin", "-z", text="\0".join(new)).split("\0") if path}
    assert rules.ignored(new) == ignored


@pytest.mark.parametrize("version", ["2", "3", "4"])
@pytest.mark.parametrize("form", ["sha1", "sha256"])
def test_every_version_of_the_index(tmp_path: Path, version: str, form: str) -> None:
    fill(tmp_path, *(path for path in PATHS if path != "foo"))
    git(tmp_path, "init", "-q", f"--object-format={form}")
    git(tmp_path, "add", ".")
    if version == "3":
        fill(tmp_path, "later")
        git(tmp_path, "add", "--intent-to-add", "later")
    git(tmp_path, "update-index", "--index-version", version)
    data = (tmp_path / ".git/index").read_bytes()
    assert data[7] == int(version)
    assert parse_index(data).files == {path for path in git(tmp_path, "ls-files", "-z").split("\0") if path}
    for cut in range(0, len(data), 7):
        with pytest.raises(IndexUnreadableError):
            parse_index(data[:cut])


def test_tracked_files_count_though_they_are_ignored_and_submodules_do_not(tmp_path: Path) -> None:
    repo, other = tmp_path / "repo", tmp_path / "other"
    for folder in (repo, other):
        fill(folder, "kept.log", "build/kept", "build/more")
        git(folder, "init", "-q")
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", "first")
    (repo / ".gitignore").write_text("*.log\nbuild\n")
    fill(repo, "new.log", "build/new")
    git(repo, "submodule", "--quiet", "add", str(other), "sub")
    rules = Rules(repo)
    assert rules.files() == [".gitignore", ".gitmodules", "build/kept", "build/more", "kept.log"]
    assert "not copied: sub is a submodule" in rules.problems


def test_a_submodule_a_worktree_and_a_folder_of_the_users_own(tmp_path: Path) -> None:
    repo, other = tmp_path / "repo", tmp_path / "other"
    for folder in (repo, other):
        fill(folder, "pkg/kept.log", "pkg/a")
        (folder / ".gitignore").write_text("*.tmp\n")
        git(folder, "init", "-q")
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", "first")
        (folder / ".git/info/exclude").write_text("*.log\n")
    git(repo, "submodule", "--quiet", "add", str(other), "libs/sub")
    git(repo, "commit", "-qm", "second")
    git(repo, "worktree", "add", "-q", str(tmp_path / "second"))
    git(tmp_path / "second", "submodule", "--quiet", "update", "--init")
    git(tmp_path, "clone", "-q", "--bare", str(other), "bare")
    git(tmp_path / "bare", "worktree", "add", "-q", str(tmp_path / "third"))
    for exclude in ("repo/.git/modules/libs/sub", "repo/.git/worktrees/second/modules/libs/sub", "bare"):
        (tmp_path / exclude / "info/exclude").write_text("*.log\n")
    for folder in (repo, repo / "libs/sub", tmp_path / "second", tmp_path / "second/libs/sub", tmp_path / "third"):
        fill(folder, "pkg/new.log", "pkg/new.tmp", "pkg/new")
        assert Rules(folder).files() == listed_by_git(folder)
        assert Rules(folder / "pkg").files() == ["a", "kept.log", "new"]
        assert Rules(folder / "pkg").ignored(["b", "b.tmp", "q/b.log"]) == {"b.tmp", "q/b.log"}
        assert not [problem for problem in Rules(folder).problems if "index" in problem or ".git does" in problem]


def test_a_folder_that_the_work_tree_ignores_stands_alone(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("*\n")
    fill(tmp_path, "work/a", "work/b")
    assert Rules(tmp_path / "work").files() == ["a", "b"]


@pytest.mark.parametrize("where", ["~/.gitconfig", "~/.config/git/config", "default"])
def test_what_the_user_ignores_everywhere(tmp_path: Path, home: Path, where: str) -> None:
    repo = tmp_path / "repo"
    fill(repo, "a", "a.swp", "b.bak")
    (repo / ".gitignore").write_text("!b.bak\n")
    git(repo, "init", "-q")
    (home / ".config/git").mkdir(parents=True)
    if where == "default":
        (home / ".config/git/ignore").write_text("*.swp\n*.bak\n")
    else:
        (home / where.removeprefix("~/")).write_text('[user]\n\tname = x\n[Core]\n\texcludesFile = "~/my excludes"\n')
        (home / "my excludes").write_text("*.swp\n*.bak\n")
    assert Rules(repo).files() == listed_by_git(repo) == [".gitignore", "a", "b.bak"]


def test_a_split_index_is_said_and_not_followed(tmp_path: Path) -> None:
    fill(tmp_path, "a", "b.log")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "update-index", "--split-index")
    (tmp_path / ".gitignore").write_text("*.log\n")
    rules = Rules(tmp_path)
    assert rules.files() == [".gitignore", "a"]
    assert any("split into two files" in problem for problem in rules.problems)


def test_an_index_of_too_many_entries_is_said_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """256 MiB have room for 4 million, which took 24 seconds and more than a GiB."""
    fill(tmp_path, "a", "b.log")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    (tmp_path / ".gitignore").write_text("*.log\n")
    monkeypatch.setattr("agent.repo.index.MOST_ENTRIES", 2)
    assert Rules(tmp_path).files() == [".gitignore", "a", "b.log"]
    monkeypatch.setattr("agent.repo.index.MOST_ENTRIES", 1)
    rules = Rules(tmp_path)
    assert rules.files() == [".gitignore", "a"]
    assert "its index cannot be used: it has 2 entries, and at most 1 are read" in rules.problems[0]


def test_no_pattern_takes_exponential_time() -> None:
    """C10n and beyond: pathspec takes minutes for the first one, and git for the second."""
    for pattern in ("*a" * 100 + "*b", "/".join(["**", "a"] * 60 + ["b"])):
        parts = ("a" * 250,) if "/" not in pattern else ("a",) * 250
        began = time.process_time()
        assert Patterns([pattern]).verdict(parts, False, Work()) is None
        assert time.process_time() - began < 5


def test_too_much_to_compare_is_said() -> None:
    patterns, work = Patterns(["*.log"] * 100), Work(1100)
    patterns.verdict(("a",), False, work)
    with pytest.raises(TooMuchWorkError):
        patterns.verdict(("b",), False, work)


@pytest.mark.exhaustive
def test_compiling_patterns_is_counted_and_long_lines_are_not_used(tmp_path: Path) -> None:
    """19 small files of a line each took 34 seconds, and counted for 2 % of what may be taken. 64 lines of 4 KiB now take 10 %."""
    fill(tmp_path, "a")
    (tmp_path / ".gitignore").write_text(f"{'?' * 262_143}\n")
    rules = Rules(tmp_path)
    assert rules.files() == [".gitignore", "a"]
    assert rules.problems == ["not used: 1 line of more than 4096 bytes in .gitignore"]
    work = Work()
    Patterns.of_bytes(("*a" * 2048 + "\n").encode() * 63, work)
    assert work.left < MOST_WORK * 0.9
    for number in range(10):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / ".gitignore").write_text(("*a" * 2047 + "\n") * 64)
    with pytest.raises(SandboxError, match="take too long to read and to match"):
        Rules(tmp_path)


def test_the_length_of_paths_is_counted(tmp_path: Path) -> None:
    """250 nested .gitignore of one character and 6,000 files took 16 seconds at 0.6 % of what may be taken."""
    at = tmp_path
    for _ in range(200):
        (at / ".gitignore").write_text("x")
        at = at / "d"
        at.mkdir()
    fill(at, *map(str, range(10)))
    rules = Rules(tmp_path)
    before = rules._work.left
    assert rules.ignored(["d/" * 200 + str(number) for number in range(10, 20)]) == set()
    # Each of the names is looked at by 200 lists of patterns, for paths of 100 parts on average, which were found by as many.
    assert before - rules._work.left > 10 * 200 * 200


@pytest.mark.exhaustive
def test_a_repository_without_git_takes_time_that_grows_with_its_depth(tmp_path: Path) -> None:
    """C10n: 20 files 200 levels deep took 43 seconds; and a path from the sandbox may be any deeper."""
    (tmp_path / ".gitignore").write_text("*.log\n/build/\nx/**/y\n")
    deep = "d/" * 200
    fill(tmp_path, *(f"{deep}{number}" for number in range(20)))
    began = time.process_time()
    rules = Rules(tmp_path)
    assert len(rules.files()) == 21
    far = "d/" * 5000
    assert rules.ignored([f"{far}{number}.log" for number in range(20)] + [f"{far}a"]) == {f"{far}{n}.log" for n in range(20)}
    assert time.process_time() - began < 10


def test_a_repository_that_is_too_deep_is_refused_in_words(tmp_path: Path) -> None:
    """C10, A10: a RecursionError from 1,500 levels on."""
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(5000):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    try:
        with pytest.raises(SandboxError, match="more than 256 levels deep"):
            Rules(tmp_path)
        (tmp_path / ".gitignore").write_text("/d\n")
        assert Rules(tmp_path).files() == [".gitignore"]
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)


def test_a_path_that_no_sandbox_could_hold_is_refused_in_words(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 200, dir_fd=at)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=at))
    os.close(at)
    with pytest.raises(SandboxError, match="paths of more than 3500 bytes"):
        Rules(tmp_path)
    subprocess.run(["rm", "-rf", str(tmp_path / ("d" * 200))], check=True)


def test_a_folder_that_cannot_be_read_is_left_out_and_named() -> None:
    # As a user for whom modes count, for root may read everything; in a folder that others may enter.
    program = (
        "import os, sys, pathlib; from agent.repo.ignoring import Rules\n"
        "if os.geteuid() == 0: os.seteuid(65534)\n"
        "rules = Rules(pathlib.Path(sys.argv[1])); print(rules.files(), rules.problems)"
    )
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        fill(Path(name), "a", "data/b")
        (Path(name) / "data").chmod(0)
        done = subprocess.run([sys.executable, "-c", program, name], check=True, capture_output=True, text=True)
        (Path(name) / "data").chmod(0o755)
    assert done.stdout == "['a'] ['not copied: data cannot be read']\n"
