"""Word paths that could not be used: a missing part, a near miss, a link that leads out, a mode that forbids it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from sandbox.errors import ErrorCode
from sandbox.text.wording import Wording

Fields = Mapping[str, Any]

_VERBS = {"make_dir": "make", "upload": "write", "download": "read", "restore": "write", "wait_for": "read"}
# Operations that create something at a path, which a link there prevents.
_MAKES = frozenset({"write", "edit", "upload", "make_dir", "move", "restore"})
_CHMOD = {
    ("read", True): "u+rx",
    ("enter", True): "u+x",
    ("write", True): "u+wx",
    ("read", False): "u+r",
    ("write", False): "u+w",
}


def shell_word(path: Any) -> str:
    """Return a path quoted for a shell, with control characters escaped."""
    text = str(path)
    return shlex.quote(text) if text.isprintable() else repr(text)


def not_found(f: Fields) -> Wording:
    """Word a path that does not exist: which part is missing, what has a similar name, which link is broken."""
    path, near, missing = f.get("path"), f.get("near") or [], f.get("missing")
    if missing is not None and "direct" in f:
        message = f"The path leads through {missing!r}, which does not exist, and back with '..'."
        if f["direct"] is not None:
            return Wording(message, f"Give the path without '..': {f['direct']!r}.", f["operation"])
        return Wording(message, f"Use a path below {_listed(f)}, without '..'.", "list")
    message = f"{path!r} does not exist."
    if f.get("link") and missing is not None:
        message = f"{path!r} does not exist: {f['link']!r} is a link to {f.get('target')!r}, which is missing."
    elif missing is not None and f.get("parts_left"):
        message = f"{path!r} does not exist: there is no {missing!r}."
    if near:
        also = f" (also {', '.join(map(repr, near[1:]))})" if near[1:] else ""
        tool = f["operation"] if f["operation"] in ("read", "edit", "list", "search") else "list"
        return Wording(message, f"Did you mean {near[0]!r}{also}?", tool)
    folder = f.get("folder")
    where = "the workspace" if folder == "." else repr(folder) if folder else "the folder"
    return Wording(message, f"List {where} to see what is there.", "list")


def _listed(f: Fields) -> str:
    return ", ".join(str(root) for root in f.get("roots", [])) or "the workspace"


def circle(f: Fields) -> Wording:
    """Word a path with more links than the kernel follows, which nearly always lead back to the first."""
    path, link = f.get("path"), f.get("link")
    last = f": {'it' if link == path else repr(link)} is a link to {f.get('target')!r}" if link else ""
    return Wording(
        f"{path!r} leads through too many links, probably in a circle{last}.",
        "Delete the link, or make one that leads to a file, with run." if link else "Look at the links with run: ls -l.",
        "run",
    )


def outside(f: Fields) -> Wording:
    """Word a path that leads out of the roots, by a link or because it begins elsewhere."""
    path, near = f.get("path"), f.get("near") or []
    if f.get("link"):
        own = "it" if f["link"] == path else repr(f["link"])
        return Wording(
            f"{path!r} leads out of the folders that file tools may use: {own} is a link to {f.get('target')!r}.",
            "Commands can follow it: look at what it points to with run."
            + (" To put a file of its own there, delete the link first." if f.get("operation") in _MAKES else ""),
            "run",
        )
    if near:
        return Wording(
            f"{path!r} is outside the folders that file tools may use.",
            f"Did you mean {near[0]!r} in the workspace? Look at system files with run.",
            f["operation"],
        )
    return Wording(
        f"{path!r} is outside the folders that file tools may use.",
        f"Use a path below {_listed(f)}; look at system files with run.",
        "run",
    )


def denied(f: Fields) -> Wording:
    """Word a path that may not be used: the folder or file whose mode forbids it, and whether that can be changed."""
    path, operation = f.get("path"), str(f.get("operation"))
    message = f"You may not {_VERBS.get(operation, operation)} {path!r}"
    if f.get("read_only"):
        return Wording(
            f"{message}: it lies on a file system that is read-only.", "Use the workspace, the home or /tmp."
        )
    part = f.get("part")
    if part is None:
        return Wording(f"{message}.", f"Look at its mode and owner with run: ls -ld {shell_word(path)}.", "run")
    kind = "folder" if f.get("is_folder") else "file"
    what = f"the {kind} {part!r}" if part != path else f"this {kind}"
    owner = "you" if f.get("owned") else "root" if f.get("owner") == 0 else f"user {f.get('owner')}"
    message = f"{message}: {what} has mode {f.get('mode')} and belongs to {owner}."
    if f.get("owned"):
        change = _CHMOD.get((str(f.get("lacks")), bool(f.get("is_folder"))), "u+rwx")
        return Wording(
            message, f"If the task needs that, change the mode with run: chmod {change} {shell_word(part)}.", "run"
        )
    return Wording(message, "You cannot change that: use another path in the workspace, the home or /tmp.")


def not_a_folder(f: Fields) -> Wording:
    """Word a file where a folder was expected."""
    path, part = f.get("path"), f.get("part")
    if part is not None and f.get("parts_left"):
        return Wording(
            f"{path!r} does not exist: {part!r} is a file.", f"Read {part!r}, or list the folder it is in.", "read"
        )
    if f.get("operation") == "list":
        return Wording(f"{path!r} is a file, not a folder.", "Read it, or list the folder it is in.", "read")
    return Wording(f"{path!r} is a file, not a folder.", "Give the path of a folder.", "list")


def special(f: Fields) -> Wording:
    """Word a FIFO, a socket or a device, which only commands can use."""
    path, kind = f.get("path"), str(f.get("kind", "special file"))
    name = {"fifo": "a FIFO (named pipe)", "socket or fifo": "a socket or a FIFO (named pipe)"}.get(kind, f"a {kind}")
    return Wording(
        f"{path!r} is {name}, not a regular file.",
        f"Only commands can use it: use run, with a time limit, as in timeout 5 cat {shell_word(path)}."
        if kind in ("fifo", "device")
        else "Only commands can use it, with run.",
        "run",
    )


FAULTS: dict[ErrorCode, Callable[[Fields], Wording]] = {
    ErrorCode.path_not_found: not_found,
    ErrorCode.path_outside_roots: outside,
    ErrorCode.permission_denied: denied,
    ErrorCode.not_a_directory: not_a_folder,
    ErrorCode.not_a_regular_file: special,
}
