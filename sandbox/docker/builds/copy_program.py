"""The program that makes folders and copies an archive's files in the sandbox of a step, with the guest's interpreter as root.

It runs inside, where an archive can harm nothing but its owner's own image, and imports only the standard library. It refuses what
is no file, folder or link, names that lead out of the archive, and files that would lie behind a link of the archive. The request
is JSON on standard input, and the answer one line of JSON: {"files": ..., "bytes": ...} or {"error": ...}.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import sys
import tarfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CHUNK = 1 << 20
_MOST_MEMBERS = 200_000
_MOST_LINK = 4096


class RefusalError(Exception):
    """What the owner of the build has to change, as one sentence."""


def main() -> None:
    """Carry out the request on standard input."""
    request = json.loads(sys.stdin.buffer.read())
    try:
        for folder, owner in request.get("folders", ()):
            make_folders(folder, find_owner(owner, "/"), 0o755)
        answer = {"files": 0, "bytes": 0}
        if "archive" in request:
            answer = copy(request)
        print(json.dumps(answer))
    except RefusalError as error:
        print(json.dumps({"error": str(error)}))
    except (OSError, tarfile.TarError, EOFError, ValueError, MemoryError) as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:500]}))


def copy(request: dict[str, Any]) -> dict[str, int]:
    """Copy what ``source`` names to ``destination``. Raises RefusalError, OSError, tarfile.TarError."""
    root = request.get("root", "/")
    owner = find_owner(request["owner"], root)
    with tarfile.open(request["archive"]) as archive:
        members = read_members(archive, request["bytes"])
        found = find_sources(members, request["source"])
        if not found:
            raise RefusalError(f"The archive has no file that {request['source']!r} names.")
        destination = root.rstrip("/") + request["destination"]
        # How many files a pattern happens to match must not decide whether the destination is a folder.
        is_pattern = found[0] != "/".join(part for part in request["source"].split("/") if part not in ("", "."))
        into_folder = request["destination"].endswith("/") or is_pattern or os.path.isdir(destination)
        work = Copying(archive, members, owner, request["mode"])
        for name in found:
            is_folder = name == "" or name not in members or members[name].isdir()
            target = destination.rstrip("/") or "/"
            if not is_folder and into_folder:
                target = os.path.join(target, os.path.basename(name))
            work.copy_tree(name, target)
        return {"files": work.files, "bytes": work.bytes}


def read_members(archive: tarfile.TarFile, most_bytes: int) -> dict[str, tarfile.TarInfo]:
    """Return the members by their normal names; of two with one name, the last one counts. Raises RefusalError."""
    members: dict[str, tarfile.TarInfo] = {}
    total = 0
    for member in archive:
        name = normal_name(member.name)
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            raise RefusalError(f"{member.name[:200]!r} in the archive is not a file, folder or link.")
        if (member.issym() or member.islnk()) and len(member.linkname) > _MOST_LINK:
            raise RefusalError(f"The link {member.name[:200]!r} of the archive is too long.")
        total += member.size if member.isreg() else 0
        if total > most_bytes:
            raise RefusalError(f"The files of the archive have more than the {most_bytes} bytes that a step may write.")
        if len(members) >= _MOST_MEMBERS:
            raise RefusalError(f"The archive has more than {_MOST_MEMBERS} files.")
        if name:
            members[name] = member
    for name in members:
        for above in parents(name):
            if above in members and not members[above].isdir():
                raise RefusalError(f"The archive has {name[:200]!r} below {above[:200]!r}, which is not a folder.")
    return members


def normal_name(name: str) -> str:
    """Return a name without ``.`` and double slashes, "" for the root. Raises RefusalError for one that leads out."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise RefusalError(f"The name {name[:200]!r} in the archive leads out of it.")
    return "/".join(parts)


def parents(name: str) -> list[str]:
    """Return the folders above a name, the outermost first."""
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def find_sources(members: dict[str, tarfile.TarInfo], source: str) -> list[str]:
    """Return the names that a source or pattern stands for: members, or folders that only members' names imply."""
    wanted = [part for part in source.split("/") if part not in ("", ".")]
    if ".." in wanted:
        raise RefusalError(f"The source {source[:200]!r} leads out of the archive.")
    if not wanted:
        return [""] if members else []
    names = set(members)
    for name in members:
        names.update(parents(name))
    plain = "/".join(wanted)
    if plain in names:
        return [plain]
    level = (name for name in names if name.count("/") == len(wanted) - 1)
    return sorted(
        name
        for name in level
        if all(fnmatch.fnmatchcase(*pair) for pair in zip(name.split("/"), wanted))  # noqa: B905 (as long as each other)
    )


class Copying:
    """Copies members of one archive to places in the root file system."""

    def __init__(
        self, archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], owner: tuple[int, int], mode: int | None
    ) -> None:
        self._archive, self._members, self._owner, self._mode = archive, members, owner, mode
        self.files = self.bytes = 0

    def copy_tree(self, name: str, target: str) -> None:
        """Copy a member, and what is below it, to ``target``. Links that the image has above the target are followed."""
        below = {each for each in self._members if each == name or not name or each.startswith(f"{name}/")}
        first = self._members.get(name)
        if first is None or first.isdir():
            make_folders(target, self._owner, self._mode_of(first, 0o755))
        else:
            make_folders(os.path.dirname(target), self._owner, 0o755)
        check_place(os.path.dirname(target) or "/")
        # In the order of the archive, in which reading is fastest; a folder may come after what is in it.
        for each in [each for each in self._members if each in below]:
            rest = each[len(name) :].lstrip("/")
            self._write(self._members[each], os.path.join(target, rest) if rest else target)

    def _write(self, member: tarfile.TarInfo, target: str) -> None:
        if member.isdir():
            make_folders(target, self._owner, self._mode_of(member, 0o755))
            if not os.path.islink(target):
                os.chmod(target, self._mode_of(member, 0o755))
                os.chown(target, *self._owner)
            return
        make_folders(os.path.dirname(target), self._owner, 0o755)
        if os.path.isdir(target) and not os.path.islink(target):
            raise RefusalError(f"{target!r} is a folder of the image, and a file in the archive.")
        if os.path.lexists(target):
            os.unlink(target)
        if member.issym():
            os.symlink(member.linkname, target)
            os.chown(target, *self._owner, follow_symlinks=False)
        else:
            self._write_file(member, target)
        self.files += 1

    def _write_file(self, member: tarfile.TarInfo, target: str) -> None:
        if member.islnk() and normal_name(member.linkname) not in self._members:
            raise RefusalError(f"The link {member.name[:200]!r} leads out of the archive.")
        source = self._archive.extractfile(member)  # a hard link's is the file that it links to
        if source is None:
            raise RefusalError(f"The link {member.name[:200]!r} leads to no file of the archive.")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(target, flags, 0o600), "wb") as file:
            shutil.copyfileobj(source, file, _CHUNK)
            self.bytes += file.tell()
            os.fchown(file.fileno(), *self._owner)
            os.fchmod(file.fileno(), self._mode_of(member, 0o644))
            os.utime(file.fileno(), (max(0, member.mtime), max(0, member.mtime)))

    def _mode_of(self, member: tarfile.TarInfo | None, default: int) -> int:
        if self._mode is not None:
            return self._mode
        return default if member is None else member.mode & 0o7777


def make_folders(path: str, owner: tuple[int, int], mode: int) -> None:
    """Make a folder and those above it that are missing, which then belong to ``owner``; existing ones stay as they are."""
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        raise RefusalError(f"{path!r} is not a folder.")
    check_place(path)
    for depth, each in enumerate(reversed(missing), 1):
        os.mkdir(each)
        os.chown(each, *owner)
        os.chmod(each, mode if depth == len(missing) else 0o755)


def check_place(folder: str) -> None:
    """Raise RefusalError for a folder that is no part of the image, as /proc and /dev are."""
    if os.stat(folder).st_dev != os.stat("/").st_dev:
        raise RefusalError(f"{folder!r} is not part of an image: something else is mounted there.")


def find_owner(text: str, root: str) -> tuple[int, int]:
    """Return uid and gid of "user" or "user:group", names or numbers, by the image's own files. Raises RefusalError."""
    user, _, group = text.partition(":")
    if user in ("", "root", "0") and group in ("", "root", "0"):
        return 0, 0
    user = user or "0"
    row = find_row(os.path.join(root, "etc/passwd"), user, 3)
    if row is None and not user.isdecimal():
        raise RefusalError(f"The image has no user {user[:100]!r}.")
    uid, gid = (int(row[2]), int(row[3])) if row is not None else (int(user), int(user))
    if group:
        row = find_row(os.path.join(root, "etc/group"), group, 2)
        if row is None and not group.isdecimal():
            raise RefusalError(f"The image has no group {group[:100]!r}.")
        gid = int(row[2]) if row is not None else int(group)
    return uid, gid


def find_row(path: str, name: str, last_number: int) -> list[str] | None:
    """Return the row of a file like /etc/passwd with that name or number; its columns 2 to ``last_number`` are numbers."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            rows = [line.rstrip("\n").split(":") for line in file.read(1 << 20).split("\n")]
    except OSError:
        return None
    numbered = [row for row in rows if len(row) > last_number and all(part.isdecimal() for part in row[2 : last_number + 1])]
    return next((row for row in numbered if row[0] == name), next((row for row in numbered if row[2] == name), None))


if __name__ == "__main__":
    main()
