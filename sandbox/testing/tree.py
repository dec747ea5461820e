"""Files in memory: the names, links and folders below the roots of a sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sandbox.guest.files.roots import LINK_BUDGET, Roots, encode_path
from sandbox.guest.protocol.faults import Fault

ROOTS = ("/workspace", "/home/agent", "/tmp", "/run/gamebox")  # noqa: S108  (the container's own, in memory)
WORKSPACE, HOME, SPILL = ROOTS[0], ROOTS[1], ROOTS[3]


@dataclass(frozen=True, slots=True)
class File:
    """A regular file."""

    data: bytes
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder. Its entries are the nodes with paths below it."""

    mode: int = 0o755


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link."""

    target: str


Node = File | Folder | Link


class Tree:
    """Nodes by absolute path. Methods raise Fault with the codes of the guest."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {root: Folder() for root in ROOTS}
        self._roots = Roots(WORKSPACE.encode(), tuple(root.encode() for root in ROOTS))

    def display(self, path: str) -> str:
        """Return the path as an agent would write it."""
        return self._roots.display(path)

    def resolve(self, path: str, *, follow: bool = True) -> str:
        """Return the absolute path of ``path`` after following links. The last name need not exist."""
        encode_path(path)
        here, left = ("", []) if path.startswith("/") else (WORKSPACE, [])
        left = [part for part in path.split("/") if part not in ("", ".")]
        links = 0
        while left:
            part = left.pop(0)
            if part == "..":
                here = here.rpartition("/")[0]
                continue
            here = f"{here}/{part}"
            node = self.nodes.get(here)
            if isinstance(node, Link) and (left or follow):
                links += 1
                if links > LINK_BUDGET:
                    raise Fault("path_invalid", path=self.display(path), errno="ELOOP")
                here = "" if node.target.startswith("/") else here.rpartition("/")[0]
                left[:0] = [p for p in node.target.split("/") if p not in ("", ".")]
            elif left and self._inside(here):
                self._require_folder(here, path)
        if not self._inside(here):
            raise self._outside(path)
        return here

    def _require_folder(self, here: str, path: str) -> None:
        node = self.nodes.get(here)
        if not isinstance(node, Folder):
            raise Fault("path_not_found" if node is None else "not_a_directory", path=self.display(path))

    def _inside(self, absolute: str) -> bool:
        return any(absolute == root or absolute.startswith(root + "/") for root in ROOTS)

    def _outside(self, path: str) -> Fault:
        return Fault("path_outside_roots", path=self.display(path), roots=list(ROOTS))

    def node(self, path: str, *, follow: bool = True) -> tuple[str, Node]:
        """Return the absolute path and the node there."""
        absolute = self.resolve(path, follow=follow)
        if absolute not in self.nodes:
            raise Fault("path_not_found", path=self.display(path))
        return absolute, self.nodes[absolute]

    def file(self, path: str) -> tuple[str, File]:
        """Return the absolute path and the regular file there."""
        absolute, node = self.node(path)
        if not isinstance(node, File):
            raise Fault("is_a_directory", path=self.display(path))
        if path.endswith("/"):
            raise Fault("not_a_directory", path=self.display(path))
        return absolute, node

    def named(self, path: str, *, follow: bool) -> str:
        """Return the absolute path of something with a name of its own, which excludes roots. It need not exist."""
        raw = path.rstrip("/")
        encode_path(path)
        if raw.rpartition("/")[2] in ("", ".", ".."):
            raise Fault(
                "path_invalid", path=self.display(path), problem="it does not end in the name of a file or folder"
            )
        absolute = self.resolve(raw, follow=follow)
        if absolute in ROOTS:
            raise Fault("path_invalid", path=self.display(path), problem="it is a root of the sandbox's files")
        parent = self.nodes.get(absolute.rpartition("/")[0])
        if not isinstance(parent, Folder):
            raise Fault("path_not_found" if parent is None else "not_a_directory", path=self.display(path))
        return absolute

    def make_folders(self, path: str) -> tuple[str, int]:
        """Make the folder ``path`` and its missing parents. Returns its absolute path, and how many folders were made."""
        encode_path(path)
        absolute = path if path.startswith("/") else f"{WORKSPACE}/{path}"
        made = 0
        at = ""
        for part in absolute.split("/"):
            if part in ("", "."):
                continue
            at = f"{at}/{part}"
            if not any(root == at or root.startswith(at + "/") for root in ROOTS):
                made += self._make(at, path)
        resolved = self.resolve(path)
        self._require_folder(resolved, path)
        return resolved, made

    def _make(self, at: str, path: str) -> int:
        absolute = self.resolve(at)
        node = self.nodes.get(absolute)
        if node is None:
            self.nodes[absolute] = Folder()
            return 1
        if not isinstance(node, Folder):
            raise Fault("not_a_directory", path=self.display(path))
        return 0

    def below(self, folder: str) -> Iterator[tuple[str, Node]]:
        """Yield everything below a folder as (relative path, node), sorted by name, a folder before what is in it."""
        prefix = folder + "/"
        names = [path[len(prefix) :] for path in self.nodes if path.startswith(prefix)]
        for name in sorted(names, key=lambda n: n.encode("utf-8", "surrogateescape").split(b"/")):
            yield name, self.nodes[prefix + name]

    def remove(self, absolute: str) -> int:
        """Remove a node and everything below it. Returns the number of nodes."""
        gone = [path for path in self.nodes if path == absolute or path.startswith(absolute + "/")]
        for path in gone:
            del self.nodes[path]
        return len(gone)
