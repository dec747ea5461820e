"""Scan, fetch and restore files in memory, as the guest does in a real sandbox."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sandbox.guest.protocol.chunks import ChunkReader
from sandbox.guest.protocol.faults import Fault
from sandbox.guest.protocol.records import (
    ATTRIBUTES,
    CHANGED,
    END,
    ENTRY,
    FETCHED,
    FILE,
    FOLDER,
    GONE,
    GOT,
    HOME,
    LINK,
    MAKE,
    PART,
    POINT,
    PUT,
    REMOVE,
    SAME,
    STEP,
    WANTED,
    WORKSPACE,
)

from .tree import ROOTS, File, Folder, Link, Node, Tree

_TOPS = {WORKSPACE: ROOTS[0], HOME: ROOTS[1]}


class FakeState:
    """Scans and restores a tree. Nodes have no times, so each gets a number when it is first seen, which stands for all times."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._seen: dict[str, tuple[Node, int]] = {}
        self._clock = 1

    def _stamp(self, path: str, node: Node) -> int:
        known = self._seen.get(path)
        if known is None or known[0] is not node:
            self._clock += 1
            self._seen[path] = known = (node, self._clock)
        return known[1]

    def scan(self, args: dict[str, Any], sink: Callable[[bytes], None]) -> dict[str, Any]:
        """Do as ``guest.state.scanning.scan``, without commands."""
        count = 0
        for root in args["roots"]:
            top = _TOPS[root]
            for name, node in [("", self._tree.nodes[top]), *self._tree.below(top)]:
                path = name.encode("utf-8", "surrogateescape")
                kind = FILE if isinstance(node, File) else LINK if isinstance(node, Link) else FOLDER
                target = node.target.encode("utf-8", "surrogateescape") if isinstance(node, Link) else b""
                size = len(node.data) if isinstance(node, File) else 0
                mode = 0o777 if isinstance(node, Link) else node.mode
                stamp = self._stamp(f"{top}/{name}", node)
                sink(
                    ENTRY.pack(root, kind, mode, 1000, 1000, size, stamp, stamp, root, stamp, 1, len(path), len(target))
                    + path
                    + target
                )
                count += 1
        return {
            "clock_ns": self._clock,
            "entries": count,
            "unread": [],
            "unread_count": 0,
            "running": [],
            "sessions": {},
        }

    def fetch(self, body: Iterable[bytes], sink: Callable[[bytes], None]) -> dict[str, Any]:
        """Do as ``guest.state.fetching.fetch``."""
        asked, at, number = b"".join(body), 0, 0
        while at < len(asked):
            root, length = WANTED.unpack_from(asked, at)
            at += WANTED.size
            path = self._path(root, asked[at : at + length])
            at += length
            node = self._tree.nodes.get(path)
            if isinstance(node, File):
                stamp, size = self._stamp(path, node), len(node.data)
                part = PART.pack(0, size) + node.data if size else b""
                sink(
                    FETCHED.pack(number, GOT, size, stamp, stamp, root, stamp)
                    + part
                    + PART.pack(size, 0)
                    + CHANGED.pack(False)
                )
            else:
                sink(FETCHED.pack(number, GONE, 0, 0, 0, 0, 0))
            number += 1
        return {"files": number}

    def _path(self, root: int, path: bytes) -> str:
        return f"{_TOPS[root]}/{path.decode('utf-8', 'surrogateescape')}"

    def restore(self, body: Iterable[bytes]) -> dict[str, Any]:
        """Do as ``guest.state.restoring.restore``."""
        stream, steps = ChunkReader(iter(body), _ended_too_soon), 0
        while True:
            root, kind, mode, _, _, mtime, length, more = STEP.unpack(stream.read_exactly(STEP.size))
            if kind == END:
                return {"steps": steps, "running": []}
            path, target = (
                self._path(root, stream.read_exactly(length)),
                stream.read_exactly(more).decode("utf-8", "surrogateescape"),
            )
            node = self._tree.nodes.get(path.rstrip("/"))
            if kind == REMOVE:
                self._tree.remove(path)
            else:
                made = self._made(kind, mode, target, node, stream, root)
                self._tree.nodes[path.rstrip("/")] = made
                self._seen[path] = (made, mtime)
            steps += 1

    def _made(self, kind: bytes, mode: int, target: str, node: Node | None, stream: ChunkReader, root: int) -> Node:
        if kind == PUT:
            return File(_content(stream), mode)
        if kind == POINT:
            return Link(target)
        if kind == SAME:
            return self._tree.nodes[f"{_TOPS[root]}/{target}"]
        if kind in (MAKE, ATTRIBUTES) and not isinstance(node, Link):
            return File(node.data, mode) if isinstance(node, File) else Folder(mode)
        raise Fault("invalid_arguments", problem=f"there is no step {kind!r} for {node!r}")


def _content(stream: ChunkReader) -> bytes:
    data = b""
    while True:
        at, length = PART.unpack(stream.read_exactly(PART.size))
        if not length:
            return data + bytes(at - len(data))
        data += bytes(at - len(data)) + stream.read_exactly(length)


def _ended_too_soon() -> Fault:
    return Fault("transfer_incomplete", problem="the stream ended too soon")
