"""The two halves of an agent file: YAML with the line of each key, and Markdown sections with the line at which each begins."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from sandbox.frozen import dataclass

MAX_DEPTH = 30
REMEMBERED_CHARS = 16_384
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r"##[ \t]+(.*?)[ \t]*#*[ \t]*$")
_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map"))


class AgentFileError(ValueError):
    """A fault in a file. ``line`` counts from 1; it is None if the fault is in the file as a whole.

    ``in_text`` is true for a fault in the Markdown, not the keys: in a folder these are two files. ``others`` are the further
    faults of the same file.
    """

    def __init__(self, what: str, line: int | None = None, *, in_text: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.line = line
        self.in_text = in_text
        self.others: tuple[AgentFileError, ...] = ()


def raise_all(faults: Iterable[AgentFileError]) -> None:
    """Raise the first of these faults by its line, with the others in ``others``. Does nothing without a fault."""
    ordered = sorted(faults, key=lambda fault: (fault.in_text, fault.line or 0))
    if ordered:
        first = ordered[0]
        first.others = tuple(ordered[1:])
        raise first


@dataclass(frozen=True, slots=True)
class Values:
    """A YAML mapping, with the line of each key and item by the keys and numbers that lead to it."""

    values: dict[str, Any]
    lines: dict[tuple[str | int, ...], int]

    def line(self, *way: str | int) -> int | None:
        """Return the line of a key or item, as in ``line("kit_options", "editor", "window")``.

        For one that is missing, returns the line of the nearest key above it; None if there is none.
        """
        found = (self.lines.get(way[:end]) for end in range(len(way), 0, -1))
        return next((line for line in found if line is not None), None)


@dataclass(frozen=True, slots=True)
class Section:
    """The Markdown below a heading; ``line`` is where its text begins."""

    name: str
    text: str
    line: int


def split(text: str) -> tuple[str, str, int]:
    """Split a file into its frontmatter, its body and the line at which the body begins. Raises AgentFileError."""
    lines = text.split("\n")
    if lines[0].strip() != "---":
        raise AgentFileError("it does not begin with a line of three dashes, which opens the frontmatter", 1)
    end = next((n for n, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        raise AgentFileError("its frontmatter is not closed: a second line of three dashes is missing", 1)
    return "\n".join(lines[1:end]), "\n".join(lines[end + 1 :]), end + 2


def values(text: str, first_line: int = 1) -> Values:
    """Parse a YAML mapping that JSON could express, too. Raises AgentFileError."""
    if len(text) > REMEMBERED_CHARS:
        return _parsed(text, first_line)
    found = _remembered(text, first_line)
    return Values(copy.deepcopy(found.values), dict(found.lines))


@lru_cache(maxsize=64)
def _remembered(text: str, first_line: int) -> Values:
    """Parse a short file once: the agents of a hub take 0.2 s of processor time, and most commands look them up several times."""
    return _parsed(text, first_line)


def _parsed(text: str, first_line: int) -> Values:
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise AgentFileError("it is not a mapping of keys to values", first_line)
        raise_all(_faults(node, first_line, set(), 0))
        found: dict[str, Any] = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = first_line + mark.line if mark is not None else first_line
        raise AgentFileError(f"it is not valid YAML: {error.problem or error.context}", line) from error
    except yaml.YAMLError as error:
        raise AgentFileError(f"it is not valid YAML: {str(error)[:200]}", first_line) from error
    except RecursionError as error:
        raise AgentFileError("it is nested too deeply", first_line) from error
    return Values(found, dict(_lines(node, first_line)))


def _lines(node: Any, first_line: int, way: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], int]]:
    """Yield the line of every key and item. Nodes have been checked: there are no cycles, and keys are texts."""
    if node.tag.endswith(":map"):
        below = [((*way, key.value), key, value) for key, value in node.value]
    elif node.tag.endswith(":seq"):
        below = [((*way, number), item, item) for number, item in enumerate(node.value)]
    else:
        return
    for to, at, value in below:
        yield to, first_line + at.start_mark.line
        yield from _lines(value, first_line, to)


def _faults(node: Any, first_line: int, seen: set[int], depth: int) -> Iterator[AgentFileError]:
    """Yield what JSON lacks, duplicate keys, and aliases, which can grow without bound."""
    line = first_line + node.start_mark.line
    if id(node) in seen:
        yield AgentFileError("aliases (*name) are not allowed", line)
        return
    seen.add(id(node))
    if depth > MAX_DEPTH:
        yield AgentFileError(f"it is nested deeper than {MAX_DEPTH}", line)
        return
    if node.tag not in _TAGS:
        yield AgentFileError(f"{node.tag.rsplit(':', 1)[-1]} values are not allowed: quote a text", line)
    if node.tag.endswith((":int", ":float")) and not _is_number(node):
        yield AgentFileError(f"{node.value[:40]!r} is not a number in JSON", line)
    if node.tag.endswith(":map"):
        yield from _faults_of_keys(node, first_line)
    for child in _below(node):
        yield from _faults(child, first_line, seen, depth + 1)


def _faults_of_keys(node: Any, first_line: int) -> Iterator[AgentFileError]:
    names: set[str] = set()
    for key, _ in node.value:
        line = first_line + key.start_mark.line
        if key.tag != "tag:yaml.org,2002:str":
            yield AgentFileError(f"the key {str(key.value)[:80]!r} is not a text: quote it", line)
        elif key.value in names:
            yield AgentFileError(f"the key {key.value[:80]!r} appears twice", line)
        else:
            names.add(key.value)


def _is_number(node: Any) -> bool:
    return len(node.value) <= 40 and (node.tag.endswith(":int") or math.isfinite(_float(node.value)))


def _float(text: str) -> float:
    try:
        return float(text.replace("_", ""))
    except ValueError:
        return math.inf  # .inf, .nan, and sixties


def _below(node: Any) -> Iterator[Any]:
    if node.tag.endswith(":seq"):
        yield from node.value
    elif node.tag.endswith(":map"):
        for key, value in node.value:
            yield key
            yield value


def sections(body: str, first_line: int = 1) -> list[Section]:
    """Split a body at its ``## name`` headings; the text before the first is called "task". Headings in fences are text.

    Raises AgentFileError for headings without a name or a text, and for a body without text.
    """
    name, began, text, fence = "task", first_line, list[str](), ""
    found: list[Section] = []
    faults: list[AgentFileError] = []

    def add() -> None:
        skipped = next((n for n, line in enumerate(text) if line.strip()), None)
        if skipped is not None:
            found.append(Section(name, "\n".join(text[skipped:]).rstrip(), began + skipped))
        elif name and began > first_line:
            faults.append(AgentFileError(f"there is no text below the heading {name[:80]!r}", began - 1, in_text=True))

    for number, line in enumerate(body.split("\n"), first_line):
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""
        heading = None if fence else _HEADING.match(line)
        if heading is None:
            text.append(line)
            continue
        add()
        name, began, text = heading[1], number + 1, []
        if not name:
            faults.append(AgentFileError("a heading has no name", number, in_text=True))
    add()
    raise_all(faults)
    if not found:
        raise AgentFileError("there is no text, and an agent needs a goal", first_line, in_text=True)
    return found
