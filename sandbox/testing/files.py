"""Carry out the operations on files on a tree in memory; the guest's own code handles texts, ranges and edits."""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Callable, Iterable
from typing import Any

from sandbox.guest.files import reading, search, writing
from sandbox.guest.files.roots import Roots
from sandbox.guest.files.search_builtin import Search, event
from sandbox.guest.protocol.faults import Fault

from .tree import ROOTS, WORKSPACE, File, Folder, Link, Tree

Answer = tuple[dict[str, Any], bytes]
_ROOTS = Roots(WORKSPACE.encode(), tuple(root.encode() for root in ROOTS))


class FileOperations:
    """The operations on files. ``limits`` are the sandbox's. All methods raise Fault."""

    def __init__(self, tree: Tree, limits: dict[str, Any]) -> None:
        self._tree = tree
        self._limits = limits

    def read(self, args: dict[str, Any]) -> Answer:
        """Do as ``guest.files.reading.read``."""
        reading.check_range(args)
        _, node = self._tree.file(args["path"])
        display = {"path": self._tree.display(args["path"]), "size_bytes": len(node.data)}
        fd = os.memfd_create("file", os.MFD_CLOEXEC)
        with io.FileIO(fd, "wb") as file:
            file.write(node.data)
            return reading.read_open(fd, display, args, self._limits["read_bytes"])

    def write(self, args: dict[str, Any]) -> Answer:
        """Do as ``guest.files.writing.write``."""
        created = self.put(args["path"], _utf8(args["content"]))
        size = len(_utf8(args["content"]))
        return {"path": self._tree.display(args["path"]), "size_bytes": size, "created": created}, b""

    def put(self, path: str, data: bytes, mode: int | None = None) -> bool:
        """Put a file at ``path``, its parents too; whether it is new."""
        parent = path.rstrip("/").rpartition("/")[0]
        if parent:
            self._tree.make_folders(parent)
        absolute = self._tree.named(path, follow=True)
        previous = self._tree.nodes.get(absolute)
        if isinstance(previous, Folder):
            raise Fault("is_a_directory", path=self._tree.display(path))
        mode_before = previous.mode if isinstance(previous, File) else 0o644
        self._tree.nodes[absolute] = File(data, mode_before if mode is None else mode)
        return previous is None

    def edit(self, args: dict[str, Any]) -> Answer:
        """Do as ``guest.files.writing.edit``."""
        writing.check_texts(args)
        path = args["path"]
        absolute, node = self._tree.file(path)
        if b"\0" in node.data[: reading.SNIFFED]:
            raise Fault("not_text", path=self._tree.display(path), size_bytes=len(node.data))
        changed, result = writing.apply_edit(node.data, args, self._tree.display(path))
        if len(changed) > self._limits["write_bytes"]:
            raise Fault("file_too_large", path=path, size_bytes=len(changed), limit=self._limits["write_bytes"])
        self._tree.nodes[absolute] = File(changed, node.mode)
        return result, b""

    def list(self, args: dict[str, Any]) -> Answer:
        """Do as ``guest.files.listing.list_folder``."""
        top = self._folder(args["path"])
        entries: list[dict[str, Any]] = []
        total = 0
        for name, node in self._tree.below(top):
            parts = name.split("/")
            if len(parts) > args["depth"] or (not args["hidden"] and any(part.startswith(".") for part in parts)):
                continue
            total += 1
            entry: dict[str, Any] = {"path": self._tree.display(_join(args["path"], name)), "type": "directory"}
            if isinstance(node, File):
                entry |= {"type": "file", "size_bytes": len(node.data)}
            elif isinstance(node, Link):
                entry |= {"type": "symlink", "target": node.target}
            if len(entries) < args["max_entries"]:
                entries.append(entry)
        path = self._tree.display(args["path"])
        return {"path": path, "entries": entries, "total_entries": total, "truncated": total > len(entries)}, b""

    def stat(self, args: dict[str, Any]) -> Answer:
        """Do as ``guest.files.status.status_of``; everything belongs to the user, and has no times."""
        absolute = self._tree.resolve(args["path"], follow=False)
        link = self._tree.nodes.get(absolute)
        try:
            _, node = self._tree.node(args["path"])
        except Fault:
            if not isinstance(link, Link):
                raise
            node = link
        kind = "file" if isinstance(node, File) else "directory" if isinstance(node, Folder) else "symlink"
        size = len(node.data) if isinstance(node, File) else 0
        mode = 0o777 if isinstance(node, Link) else node.mode
        return {
            "path": self._tree.display(args["path"]),
            "type": kind,
            "size_bytes": size,
            "mode": mode,
            "uid": 1000,
            "gid": 1000,
            "owner": "agent",
            "link_target": link.target if isinstance(link, Link) else None,
        }, b""

    def _folder(self, path: str) -> str:
        absolute, node = self._tree.node(path)
        if not isinstance(node, Folder):
            raise Fault("not_a_directory", path=self._tree.display(path))
        return absolute

    def search(self, args: dict[str, Any]) -> Answer:
        """Do as ``guest.files.search.search`` without ripgrep."""
        search.check_texts(args)
        path = args["path"]
        absolute, node = self._tree.node(path)
        lines: list[str] = []

        def report(kind: str, name: bytes, number: int = 0, line: str = "", at: int = 0) -> None:
            lines.append(event(kind, name, number, line, at))

        try:
            searched = Search(args, report)
        except (re.error, RecursionError, OverflowError) as error:
            raise Fault("invalid_pattern", pattern=args["pattern"], problem=f"regex parse error: {error}") from None
        is_folder = isinstance(node, Folder)
        for name, each in self._tree.below(absolute) if is_folder else [("", node)]:
            if isinstance(each, File) and ".git" not in name.split("/") and (not is_folder or searched.allows(name)):
                searched.search_file(io.BytesIO(each.data), b"./" + os.fsencode(name))
        found = search.MatchParser(_ROOTS, path, is_folder, args["max_matches"], args["context_lines"])
        return {**found.read("\n".join(lines).encode()), "engine": "builtin"}, b""

    def make_dir(self, args: dict[str, Any]) -> Answer:
        """Do as ``guest.files.tree.make_dir``."""
        path = args["path"]
        if isinstance(self._tree.nodes.get(self._at(path)), File):
            raise Fault("path_exists", path=self._tree.display(path))
        _, made = self._tree.make_folders(path)
        return {"path": self._tree.display(path), "created": made > 0}, b""

    def _at(self, path: str) -> str:
        try:
            return self._tree.resolve(path)
        except Fault:
            return ""

    def move(self, args: dict[str, Any]) -> Answer:
        """Do as ``guest.files.tree.move``."""
        tree = self._tree
        source, target = tree.named(args["source"], follow=False), tree.named(args["target"], follow=False)
        if source not in tree.nodes:
            raise Fault("path_not_found", path=tree.display(args["source"]))
        display = tree.display(args["target"])
        existing = tree.nodes.get(target)
        if existing is not None:
            if not args["overwrite"]:
                raise Fault("path_exists", path=display)
            if isinstance(existing, Folder):
                raise Fault("is_a_directory", path=display)
            if isinstance(tree.nodes[source], Folder):
                raise Fault("not_a_directory", path=display)
        if target.startswith(source + "/"):
            raise Fault("path_invalid", path=display, problem="it lies inside the folder to be moved")
        moved = {p: n for p, n in tree.nodes.items() if p == source or p.startswith(source + "/")}
        tree.remove(source)
        tree.nodes.update({target + path[len(source) :]: node for path, node in moved.items()})
        return {"source": tree.display(args["source"]), "target": display}, b""

    def delete(self, args: dict[str, Any]) -> Answer:
        """Do as ``guest.files.tree.delete``."""
        path = args["path"]
        absolute = self._tree.named(path, follow=False)
        result = {"path": self._tree.display(path)}
        if absolute not in self._tree.nodes:
            raise Fault("path_not_found", path=result["path"])
        if not args["recursive"] and next(self._tree.below(absolute), None) is not None:
            raise Fault("directory_not_empty", path=result["path"], result={**result, "entries_deleted": 0})
        return {**result, "entries_deleted": self._tree.remove(absolute)}, b""

    def upload(self, args: dict[str, Any], body: Iterable[bytes]) -> dict[str, Any]:
        """Do as ``guest.files.transfer.upload``; archives come from the host and are trusted."""
        data = b"".join(body)
        path = args["path"]
        if args["kind"] == "tree":
            return self._unpack(path, data)
        self.put(path, data, args["mode"])
        return {"path": self._tree.display(path), "files": 1, "size_bytes": len(data)}

    def _unpack(self, path: str, data: bytes) -> dict[str, Any]:
        count = size = 0
        self._tree.make_folders(path)
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", errors="surrogateescape") as archive:
            for member in archive:
                name = _join(path, member.name)
                if member.isdir():
                    self._tree.make_folders(name)
                elif member.issym():
                    self._tree.nodes[self._tree.named(name, follow=False)] = Link(member.linkname)
                else:
                    source = archive.extractfile(member) or io.BytesIO()
                    self.put(name, source.read(), member.mode & 0o777)
                    count, size = count + 1, size + member.size
        return {"path": self._tree.display(path), "files": count, "size_bytes": size}

    def download(self, args: dict[str, Any], sink: Callable[[bytes], None]) -> dict[str, Any]:
        """Do as ``guest.files.transfer.download``."""
        path = args["path"]
        absolute, node = self._tree.node(path)
        display = self._tree.display(path)
        if isinstance(node, File):
            sink(node.data)
            return {"path": display, "kind": "file", "files": 1, "size_bytes": len(node.data), "skipped": []}
        packed = io.BytesIO()
        without = set(args.get("without") or ())
        below = [(name, each) for name, each in self._tree.below(absolute) if without.isdisjoint(name.split("/"))]
        files = [each for _, each in below if isinstance(each, File)]
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as archive:
            for name, each in below:
                member, data = tarfile.TarInfo(name), b""
                if isinstance(each, File):
                    data, member.size, member.mode = each.data, len(each.data), each.mode
                elif isinstance(each, Link):
                    member.type, member.linkname = tarfile.SYMTYPE, each.target
                else:
                    member.type, member.mode = tarfile.DIRTYPE, each.mode
                archive.addfile(member, io.BytesIO(data))
        sink(packed.getvalue())
        size = sum(len(n.data) for n in files)
        return {"path": display, "kind": "tree", "files": len(files), "size_bytes": size, "skipped": []}


def _join(folder: str, name: str) -> str:
    return name if folder in ("", ".") else f"{folder}/{name}"


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Fault("invalid_arguments", problem="content is not valid Unicode: it contains a lone surrogate") from None
