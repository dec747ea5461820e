"""Users as which a command may run, from /etc/passwd and /etc/group, which hostile commands may have written."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PASSWD, GROUP = "/etc/passwd", "/etc/group"
MOST_BYTES = 1 << 20
MOST_ROWS = 20_000
MOST_GROUPS = 64
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CODE_PATHS = frozenset(
    {"PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "PERL5LIB", "RUBYLIB", "NODE_PATH", "BASH_ENV", "ENV"}
)
# By uid, with the time of change of PASSWD.
_login_shells: dict[int, tuple[int, str]] = {}
# To setresuid, the highest number means "no change".
HIGHEST_ID = (1 << 31) - 1


class User:
    """A user as which a command runs. ``groups`` are the supplementary ones."""

    __slots__ = ("gid", "groups", "home", "name", "uid")

    def __init__(self, name: str, uid: int, gid: int, home: str, groups: tuple[int, ...] = ()) -> None:
        self.name = name
        self.uid = uid
        self.gid = gid
        self.home = home
        self.groups = groups


def find_user(text: str) -> User | None:
    """Return a user by name or number, or None if there is no such user.

    Root and any number exist even if /etc/passwd does not list them; such a number's group has the same number, its home is ``/``.
    """
    rows = [row for row in map(_parse_user, _rows(PASSWD)) if row is not None]
    number = _number(text)
    found = next((row for row in rows if row.name == text), None)
    if found is None and number is not None:
        found = next((row for row in rows if row.uid == number), User(text, number, number, "/"))
    if found is None and text == "root":
        found = User("root", 0, 0, "/")
    if found is None:
        return None
    if found.uid == 0 and found.home == "/":
        found.home = "/root"
    found.groups = _groups(found)
    return found


def build_environment(environ: dict[str, str], user: User) -> dict[str, str]:
    """Return the variables for a command of ``user``: those of the sandbox, but none that lead to another user's programs.

    Folders of PATH in which anyone but root and ``user`` could put a program are left out.
    """
    safe = {name: value for name, value in environ.items() if name not in _CODE_PATHS and not name.startswith("LD_")}
    folders = [folder for folder in environ.get("PATH", "").split(":") if _is_closed(folder, user.uid)]
    path = ":".join(folders) or DEFAULT_PATH
    return {**safe, "PATH": path, "HOME": user.home, "USER": user.name, "LOGNAME": user.name}


def _is_closed(folder: str, uid: int) -> bool:
    """Return whether only root and ``uid`` can write to the folder and to all folders above it."""
    if not folder.startswith("/"):
        return False
    path = os.path.realpath(folder)
    while True:
        try:
            found = os.stat(path)
        except OSError:
            return False
        if found.st_uid not in (0, uid) or found.st_mode & 0o022:
            return False
        if path == "/":
            return True
        path = os.path.dirname(path)


def find_name(uid: int) -> str | None:
    """Return the name of a user's number in /etc/passwd, or None."""
    return next((row.name for row in map(_parse_user, _rows(PASSWD)) if row is not None and row.uid == uid), None)


def find_group_name(gid: int) -> str | None:
    """Return the name of a group's number in /etc/group, or None."""
    number = b"%d" % gid
    row = next((row for row in _rows(GROUP) if len(row) > 2 and row[2] == number and 0 < len(row[0]) <= 256), None)
    return None if row is None else os.fsdecode(row[0])


def find_login_shell(uid: int) -> str:
    """Return the shell of a user as bash finds it for its variable SHELL."""
    try:
        changed = os.stat(PASSWD).st_mtime_ns
    except OSError:
        changed = 0
    known = _login_shells.get(uid)
    if known is None or known[0] != changed:
        number = b"%d" % uid
        row = next((row for row in _rows(PASSWD) if len(row) > 2 and row[2] == number), [])
        shell = os.fsdecode(row[6]) if len(row) > 6 and len(row[6]) < 4096 else ""
        known = _login_shells[uid] = (changed, shell or "/bin/sh")
    return known[1]


def _parse_user(row: list[bytes]) -> User | None:
    """Return the user of one row of /etc/passwd (name, password, uid, gid, comment, home, shell), or None if it is invalid."""
    if len(row) < 6 or not row[0] or len(row[0]) > 256:
        return None
    uid, gid = _number(os.fsdecode(row[2])), _number(os.fsdecode(row[3]))
    if uid is None or gid is None:
        return None
    home = os.fsdecode(row[5])
    return User(os.fsdecode(row[0]), uid, gid, home if home.startswith("/") and len(row[5]) < 4096 else "/")


def _groups(user: User) -> tuple[int, ...]:
    """Return the groups that list the user in /etc/group (name, password, gid, members)."""
    name, found = os.fsencode(user.name), []
    for row in _rows(GROUP):
        gid = _number(os.fsdecode(row[2])) if len(row) > 3 else None
        if gid is not None and gid != user.gid and name in row[3].split(b","):
            found.append(gid)
    return tuple(found[:MOST_GROUPS])


def _number(text: str) -> int | None:
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        return None
    return int(text) if int(text) <= HIGHEST_ID else None


def _rows(path: str) -> Iterator[list[bytes]]:
    """Yield the rows of a regular file of at most 1 MiB; none if the path is anything else. Never blocks, even on a FIFO."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return
        data = b""
        while len(data) <= MOST_BYTES and (piece := os.read(fd, 1 << 16)):
            data += piece
    except OSError:
        return
    finally:
        os.close(fd)
    if len(data) <= MOST_BYTES and b"\0" not in data:
        for line in data.split(b"\n", MOST_ROWS)[:MOST_ROWS]:
            yield line.split(b":", 6)
