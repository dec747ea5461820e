"""What tools leave behind in a work tree and nobody wants to read about one by one; the host has the same list."""

from __future__ import annotations

# Without .git: where that is meant, it is said.
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
    """Whether the path is in a folder that tools leave behind, or is byte code."""
    return path.endswith((".pyc", ".pyo")) or not LEFTOVERS.isdisjoint(path.split("/"))
