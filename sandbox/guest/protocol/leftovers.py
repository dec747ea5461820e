"""Names of caches and other files that tools leave in a work tree, which lists of changes leave out or summarize."""

from __future__ import annotations

# .git is not a cache.
CACHES = frozenset(
    {
        "__pycache__",
        ".pytest_cache",
        ".mypy_cache",
        ".ruff_cache",
        ".hypothesis",
        ".tox",
        ".venv",
        "node_modules",
    }
)
LEFTOVERS = CACHES | {".git"}


def is_leftover(path: str) -> bool:
    """Return whether the path is in such a folder, or is Python byte code."""
    return path.endswith((".pyc", ".pyo")) or not LEFTOVERS.isdisjoint(path.split("/"))
