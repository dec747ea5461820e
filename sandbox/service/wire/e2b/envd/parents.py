"""What the sandbox's user may not write: E2B's server is root, makes folders and files anywhere, and gives them to the user.

Here a command of root makes the folders, and gives away a file that is root's, in sandboxes whose commands may be root's. It runs
in the sandbox, and follows no link: what the user has put in the way leads it nowhere.
"""

from __future__ import annotations

import posixpath

from sandbox.docker.container.profiles import E2B_ROOT, WORKSPACE
from sandbox.envelope import Failure
from sandbox.errors import ErrorCode
from sandbox.operations import HostArguments

from .access import HOME, Session

_OWN = (f"{HOME}/", f"{WORKSPACE}/", "/tmp/", "/var/tmp/")  # noqa: S108  # of the sandbox
SECONDS = 10.0
PROGRAM = """\
import os, stat, sys
folder, home, name = sys.argv[1:]
owner = os.stat(home)
here = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
for part in filter(None, folder.split("/")):
    try:
        os.mkdir(part, 0o755, dir_fd=here)
        made = True
    except FileExistsError:
        made = False
    below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
    if made:
        os.fchown(below, owner.st_uid, owner.st_gid)
    os.close(here)
    here = below
if name:
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=here)
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        sys.exit("not a file of one name")
    os.fchown(file, owner.st_uid, owner.st_gid)
"""


async def make_folders(session: Session, folder: str) -> bool:
    """Make a folder, and those above, if it is missing where only root may make it; return whether it was made.

    What goes wrong is left to the operation that needs it, which says so.
    """
    if not _is_for_root(session, folder):
        return False
    known = await (await session.live.ready()).stat(folder)
    if not isinstance(known, Failure) or known.code is not ErrorCode.path_not_found:
        return False
    return await _as_root(session, folder)


async def make_writable(session: Session, path: str) -> None:
    """Have the user be able to write the file: make its folders as ``make_folders`` does, give it away if it is root's."""
    folder, name = posixpath.split(path)
    if not _is_for_root(session, folder):
        return
    known = await (await session.live.ready()).stat(path)
    if isinstance(known, Failure):
        await make_folders(session, folder)
    elif known.unwrap().type == "file" and known.unwrap().uid == 0:
        await _as_root(session, folder, name)


def _is_for_root(session: Session, folder: str) -> bool:
    return not f"{folder}/".startswith(_OWN) and session.live.record.spec.get("profile") == E2B_ROOT.name


async def _as_root(session: Session, folder: str, name: str = "") -> bool:
    argv = ["python3", "-I", "-c", PROGRAM, folder, HOME, name]
    args = HostArguments(argv=argv, user="root", session=None, timeout_seconds=SECONDS)
    answer = await (await session.live.ready()).execute("run", args)
    return answer.ok and answer.unwrap().exit_code == 0
