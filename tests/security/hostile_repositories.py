"""Repositories that strangers made, each built by code beneath a folder, and the home of a user who must not notice them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

SECRET = "canary-4f1b2c"
EXECUTED = "executed"  # the file in the canary's folder that every trap makes which runs a command
OURS = (".cache/gamebox", ".local/state/gamebox")  # what Gamebox keeps of its own in a user's home
Builder = Callable[[Path, Path], Path]


def git(repo: Path, *args: str) -> str:
    """Run git, as the stranger did when the repository was made."""
    settings = ("user.name=t", "user.email=t@example.com", "protocol.file.allow=always", "init.defaultBranch=main")
    words = [word for setting in settings for word in ("-c", setting)]
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(["git", *words, "-C", str(repo), *args], check=True, capture_output=True, text=True, env=environment)
    return done.stdout


def canary(home: Path) -> None:
    """Fill the user's home."""
    for name in OURS:
        (home / name).parent.mkdir(parents=True)
    for name in (".ssh/id_rsa", ".bashrc", "thesis.txt"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(f"{SECRET} {name}\n")
        (home / name).chmod(0o600)


def state(folder: Path) -> dict[str, object]:
    """Everything in ``folder`` but what is Gamebox's own: kind, mode, content and time of change."""
    found: dict[str, object] = {}
    ours = {str(folder / name) for name in OURS}
    for base, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if os.path.join(base, name) not in ours]
        for name in (*folders, *names):
            path = Path(base, name)
            status = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found[str(path.relative_to(folder))] = (status.st_mode, content, None if path.is_dir() else status.st_mtime_ns)
    return found


def index(*paths: str, mode: int = 0o100644) -> bytes:
    """An index of git, version 2, that names ``paths`` as they are."""
    data = b"DIRC" + (2).to_bytes(4, "big") + len(paths).to_bytes(4, "big")
    for path in sorted(os.fsencode(path) for path in paths):
        entry = bytes(24) + mode.to_bytes(4, "big") + bytes(12) + bytes(20) + min(len(path), 0xFFF).to_bytes(2, "big") + path
        data += entry + bytes(8 - len(entry) % 8)
    return data + hashlib.sha1(data, usedforsecurity=False).digest()


def plain(folder: Path) -> Path:
    """A work tree with one committed file."""
    repo = folder / "proj"
    repo.mkdir()
    (repo / "a.txt").write_text("one\n")
    git(repo, "init", "-q")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "first")
    return repo


def lazy_fetch(folder: Path, home: Path) -> Path:
    """C01: git fetches a missing tree of a sparse index, by a command that the repository names; and fsmonitor, and a FIFO."""
    repo = plain(folder)
    for name in ("in", "out"):
        (repo / name).mkdir()
        (repo / name / "file").write_text(name)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "second")
    git(repo, "sparse-checkout", "set", "--cone", "--sparse-index", "in")
    tree = git(repo, "rev-parse", "HEAD:out").strip()
    (repo / ".git/objects" / tree[:2] / tree[2:]).unlink()
    trap = f"touch {home / EXECUTED}; false"
    os.mkfifo(repo / ".git/pipe")
    for name, value in (
        ("core.repositoryFormatVersion", "1"), ("extensions.partialClone", "origin"), ("remote.origin.promisor", "true"),
        ("remote.origin.url", "ssh://example.com/x"), ("core.sshCommand", trap), ("core.fsmonitor", trap),
        ("core.hooksPath", str(repo)), ("core.excludesFile", str(repo / ".git/pipe")), ("core.worktree", str(home)),
        ("filter.x.clean", trap), ("filter.x.smudge", trap), ("diff.x.textconv", trap),
    ):  # fmt: skip
        git(folder, "config", "-f", str(repo / ".git/config"), name, value)
    (repo / ".gitattributes").write_text("* filter=x diff=x merge=x ident working-tree-encoding=UTF-16\n")
    return repo


def embedded_bare(folder: Path, home: Path) -> Path:
    """C01, second delivery: an ordinary clone whose sub-folder is a repository, made of tracked files."""
    outer = plain(folder)
    inner = folder / "inner"
    inner.mkdir()
    shutil.move(lazy_fetch(inner, home) / ".git", outer / "bare")
    shutil.rmtree(inner)
    (outer / "bare/pipe").unlink()
    (outer / "bare/a.txt").write_text("one\n")
    git(outer, "add", "-Af")
    return outer / "bare"


def absolute_paths(folder: Path, home: Path) -> Path:
    """C02: an index that names files of the user by absolute paths; they were emptied."""
    repo = plain(folder)
    (repo / ".git/index").write_bytes(index("a.txt", str(home / ".ssh/id_rsa"), f"/{home}/thesis.txt"))
    return repo


def folder_links(folder: Path, home: Path) -> Path:
    """C03: an index that names files behind links of folders; what they held went into the sandbox."""
    repo = plain(folder)
    (repo / "d").symlink_to(home / ".ssh")
    (repo / "sub").mkdir()
    (repo / "sub/e").symlink_to(os.path.relpath(home, repo / "sub"))
    (repo / ".git/index").write_bytes(index("a.txt", "d/id_rsa", "sub/e/thesis.txt", "sub/e/.ssh/id_rsa"))
    return repo


def paths_upwards(folder: Path, home: Path) -> Path:
    """C04: an index that names files above the repository, which stand above the copy then: in the user's home."""
    above = folder / "0/1/2/3/4/5"
    above.mkdir(parents=True)
    repo = plain(above)
    paths = [f"{'../' * levels}{name}" for levels in range(1, 9) for name in (".bashrc", ".ssh/id_rsa", "said/1.json")]
    for levels in range(1, 7):
        (repo / ("../" * levels) / ".ssh").mkdir()
        (repo / ("../" * levels) / ".bashrc").write_text(f"touch {home / EXECUTED}")
        (repo / ("../" * levels) / ".ssh/id_rsa").write_text("theirs")
    (repo / ".git/index").write_bytes(index("a.txt", *paths, "./a.txt", "x//y", ".git/config", "sub/.GIT/config", "a.txt/.."))
    return repo


def file_links(folder: Path, home: Path) -> Path:
    """Links of files out of the tree, tracked and not, and links into .git."""
    repo = plain(folder)
    (repo / "key").symlink_to(home / ".ssh/id_rsa")
    (repo / "up").symlink_to("../home/thesis.txt")
    (repo / "hooks").symlink_to(".git/hooks")
    (repo / ".gitignore").symlink_to(home / ".bashrc")
    (repo / ".git/info/exclude").unlink()
    (repo / ".git/info/exclude").symlink_to(home / ".bashrc")
    git(repo, "add", "-A")
    return repo


def linked_git_folder(folder: Path, home: Path) -> Path:
    """A .git that is a link to a repository of the user, and an index that is a link."""
    theirs = plain(folder)
    shutil.move(theirs / ".git", home / "secret.git")
    (home / "secret.git/info/exclude").write_text(SECRET)
    (theirs / ".git").symlink_to(home / "secret.git")
    return theirs


def foreign_pointer(folder: Path, home: Path) -> Path:
    """A .git file that names the user's own repository, or a place that answers slowly."""
    repo = plain(folder)
    shutil.move(repo / ".git", home / "work.git")
    (repo / ".git").write_text(f"gitdir: {home / 'work.git'}\n")
    (repo / "sub").mkdir()
    (repo / "sub/.git").write_text(f"gitdir: {home}/.git/worktrees/x\n")
    return repo


def pointer_that_proves_itself(folder: Path, home: Path) -> Path:
    """A .git file that names a link to the user's repository, below a made-up worktree that says / is its work tree."""
    repo = plain(folder)
    theirs = repo / "z/.git/worktrees/w"
    (theirs / "modules").mkdir(parents=True)
    (theirs / "gitdir").write_text("/.git\n")
    (theirs / "modules/s").symlink_to(users_repository(home, repo))
    (repo / ".git").write_text("gitdir: z/.git/worktrees/w/modules/s\n")
    return repo


def linked_submodule(folder: Path, home: Path) -> Path:
    """A submodule whose folder in the .git around it is a link to the user's own repository."""
    outer = plain(folder)
    (outer / "inner").mkdir()
    repo = plain(outer / "inner")
    (outer / ".git/modules").mkdir()
    (outer / ".git/modules/s").symlink_to(users_repository(home, repo))
    (repo / ".git").write_text("gitdir: ../../.git/modules/s\n")
    return repo


def users_repository(home: Path, repo: Path) -> Path:
    """Make the .git of ``repo`` the user's, with a secret in its history and in the name of a packed ref."""
    (home / "work").mkdir(parents=True)
    shutil.move(repo / ".git", home / "work/.git")
    (home / "work/secret.txt").write_text(SECRET)
    git(home / "work", "add", "-A")
    git(home / "work", "commit", "-qm", SECRET)
    git(home / "work", "branch", SECRET)
    git(home / "work", "pack-refs", "--all")
    return home / "work/.git"


def worktree_and_submodule(folder: Path, home: Path) -> Path:
    """A real worktree with a submodule, whose shared configuration is hostile."""
    repo = plain(folder)
    (folder / "other").mkdir()
    other = plain(folder / "other")
    git(repo, "submodule", "--quiet", "add", str(other), "sub")
    git(repo, "commit", "-qm", "second")
    git(repo, "worktree", "add", "-q", str(folder / "second"))
    for place in (repo / ".git/config", repo / ".git/modules/sub/config"):
        git(folder, "config", "-f", str(place), "core.fsmonitor", f"touch {home / EXECUTED}; false")
    return folder / "second"


def alternates(folder: Path, home: Path) -> Path:
    """Objects, replacements and a shared index that lie in the user's home."""
    repo = plain(folder)
    (repo / ".git/objects/info").mkdir(exist_ok=True)
    (repo / ".git/objects/info/alternates").write_text(f"{home}\n")
    (repo / ".git/commondir").write_text(f"{home}\n")
    (repo / ".git/shallow").symlink_to(home / "thesis.txt")
    (repo / ".git/refs/heads/evil").symlink_to(home / "thesis.txt")
    (repo / ".git/packed-refs").symlink_to(home / "thesis.txt")
    (repo / ".git/objects/pack/pack-1.pack").symlink_to(home / "thesis.txt")
    os.mkfifo(repo / ".git/objects/pack/pack-1.idx")
    return repo


def pipes(folder: Path, home: Path) -> Path:
    """FIFOs where files are expected: git waits for ever for some of them."""
    repo = plain(folder)
    (repo / "sub").mkdir()
    (repo / ".git/index").unlink()
    (repo / ".git/info/exclude").unlink()
    for name in (".gitignore", "sub/.gitignore", ".gitattributes", "AGENTS.md", ".git/index", ".git/info/exclude", ".gitmodules"):
        os.mkfifo(repo / name)
    return repo


def long_patterns(folder: Path, home: Path) -> Path:
    """Patterns that take a matcher that backtracks for ever."""
    repo = plain(folder)
    (repo / ".gitignore").write_text("*a" * 60 + "*b\n" + "**/a/" * 60 + "b\n")
    (repo / ("a" * 200)).write_text("x")
    return repo


def many_files(folder: Path, home: Path) -> Path:
    """100,000 files, most of them ignored one by one."""
    repo = plain(folder)
    (repo / ".gitignore").write_text("*.x\n!0.x\n")
    for number in range(100):
        (repo / f"d{number}").mkdir()
        at = os.open(repo / f"d{number}", os.O_RDONLY)
        for each in range(1000):
            os.close(os.open(f"{each}.x", os.O_WRONLY | os.O_CREAT, dir_fd=at))
        os.close(at)
    return repo


def deep(folder: Path, home: Path) -> Path:
    """5,000 levels, with a pattern file on top."""
    repo = plain(folder)
    (repo / ".gitignore").write_text("*.log\n")
    os.close(descend(repo, 5000))
    return repo


def descend(folder: Path, levels: int) -> int:
    """Make folders d/d/d/… below ``folder``; a descriptor of the last."""
    at = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    return at


def remove_levels(folder: Path) -> None:
    """Remove the folders that ``descend`` made; rm and shutil take minutes for it, or fail."""
    at, levels = os.open(folder, os.O_RDONLY), 0
    while "d" in os.listdir(at):
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at, levels = below, levels + 1
    for _ in range(levels):
        above = os.open("..", os.O_RDONLY, dir_fd=at)
        os.close(at)
        os.rmdir("d", dir_fd=above)
        at = above
    os.close(at)


def large(folder: Path, home: Path) -> Path:
    """A file that takes no room here, and 8 TiB in a copy."""
    repo = plain(folder)
    (repo / "data").mkdir()
    with (repo / "data/sparse").open("wb") as file:
        file.truncate(8 << 40)
    return repo


BUILDERS: tuple[Builder, ...] = (
    lazy_fetch, embedded_bare, absolute_paths, folder_links, paths_upwards, file_links, linked_git_folder, foreign_pointer,
    pointer_that_proves_itself, linked_submodule, worktree_and_submodule, alternates, pipes, long_patterns, large,
)  # fmt: skip
HEAVY: tuple[Builder, ...] = (many_files, deep)
# What is refused in words, and the words.
REFUSED = {"deep": "more than 256 levels deep", "large": "is too large: its files take 8192.0 GiB"}
