"""The editor's searches: too many results are refused with a hint on how to narrow the search, not truncated."""

from __future__ import annotations

import fnmatch
from collections import Counter

from sandbox.environment.base import Environment
from sandbox.errors import ToolError

MOST = 100
MAX_MATCHES, MAX_ENTRIES, DEPTH = 5000, 10_000, 20


def search_dir(environment: Environment, text: str, folder: str) -> str:
    """Return how often ``text`` occurs in each file below ``folder``. Raises SandboxError, also for too many files."""
    found = environment.search(text, folder, literal=True, max_matches=MAX_MATCHES).unwrap()
    counts = Counter(match.path for match in found.matches)
    if not counts:
        return f"No match for {text!r} in {_named(folder)}."
    least = "at least " if found.truncated else ""
    if len(counts) > MOST:
        raise ToolError(
            f"{text!r} occurs in {least}{len(counts)} files below {_named(folder)}; at most {MOST} are listed.",
            "Search for a longer text, or in a folder further down.",
            next_tool="search_dir",
        )
    lines = [f"{path} ({count})" for path, count in sorted(counts.items())]
    return "\n".join([f"{least}{sum(counts.values())} matching lines for {text!r} in {_named(folder)}:", *lines])


def search_file(environment: Environment, text: str, path: str) -> str:
    """Return the lines of a file that contain ``text``. Raises SandboxError, also for too many lines."""
    found = environment.search(text, path, literal=True, max_matches=MOST + 1).unwrap()
    if not found.matches:
        return f"No match for {text!r} in {path}."
    if len(found.matches) > MOST:
        raise ToolError(
            f"{text!r} occurs in more than {MOST} lines of {path}.",
            "Search for a longer text.",
            next_tool="search_file",
        )
    lines = [f"{match.line}:{match.text}" for match in found.matches]
    return "\n".join([f"{len(lines)} matching lines for {text!r} in {path}:", *lines])


def find_file(environment: Environment, name: str, folder: str) -> str:
    """Return the files below ``folder`` that are called ``name``, which may have wildcards. Raises SandboxError."""
    listed = environment.list(folder, depth=DEPTH, max_entries=MAX_ENTRIES).unwrap()
    paths = [entry.path for entry in listed.entries if entry.type != "directory" and "/.git/" not in f"/{entry.path}"]
    found = sorted(p for p in paths if fnmatch.fnmatchcase(p if "/" in name else p.rsplit("/", 1)[-1], name))
    some = f" (only the first {len(listed.entries)} entries were searched: name a folder)" if listed.truncated else ""
    if len(found) > MOST:
        raise ToolError(
            f"{len(found)} files below {_named(folder)} are called {name!r}; at most {MOST} are listed.",
            "Give more of the name, or a folder further down.",
            next_tool="find_file",
        )
    if not found:
        return f"No file called {name!r} in {_named(folder)}{some}."
    return "\n".join([f"{len(found)} files called {name!r} in {_named(folder)}{some}:", *found])


def _named(folder: str) -> str:
    return "the workspace" if folder in (".", "./") else folder
