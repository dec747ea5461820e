"""The user's own files on this host, which say what runs or hold secrets: read only if nobody else can have written them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sandbox.frozen import dataclass


class OwnFileError(Exception):
    """A file that is not used. The text says why, in words that follow the path; ``hint`` says what to do."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Rule:
    """What a file must be like: without the bits ``forbidden`` in its mode, and of this user.

    With ``is_secret`` it must not be a link either; otherwise it may belong to root, too.
    """

    forbidden: int
    is_secret: bool = False


SETTINGS = Rule(stat.S_IWGRP | stat.S_IWOTH)
# Named on a command line: the user may share it with a group.
NAMED = Rule(stat.S_IWOTH)
SECRET = Rule(stat.S_IRWXG | stat.S_IRWXO, is_secret=True)


def config_folder() -> Path:
    """Return ``$XDG_CONFIG_HOME/gamebox``, below ~/.config where that is not set to an absolute path.

    A relative one would be looked up in the current folder: a repository could bring settings with it.
    """
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(base if Path(base).is_absolute() else Path.home() / ".config", "gamebox")


def read_own_file(path: Path, most_bytes: int, rule: Rule) -> bytes | None:
    """Return what is in a file; None if it does not exist.

    The file is checked as it was opened, and opening it waits for nothing. Raises OwnFileError for a file that cannot be read,
    is not a regular one, does not follow ``rule``, or has more than ``most_bytes``.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_NOFOLLOW if rule.is_secret else 0)
    try:
        descriptor = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise OwnFileError(f"cannot be read: {error.strerror}", "Correct its permissions, or move it away.") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OwnFileError("is not a regular file", "Put a file there, or move it away.")
        users = {os.geteuid()} if rule.is_secret else {os.geteuid(), 0}
        if found.st_uid not in users or found.st_mode & rule.forbidden:
            can = "read or write" if rule.is_secret else "write"
            raise OwnFileError(
                f"is not read: other users can {can} it, or it belongs to another user",
                "Look at what is in it, then take it over: chown it to yourself, and chmod "
                f"{'go-rwx' if rule.is_secret else 'go-w'}.",
            )
        content = os.read(descriptor, most_bytes + 1)
    finally:
        os.close(descriptor)
    if len(content) > most_bytes:
        size = f"{most_bytes >> 20} MiB" if most_bytes >> 20 else f"{most_bytes:,} bytes"
        raise OwnFileError(f"has more than {size}", "Shorten the file, or move it away.")
    return content
