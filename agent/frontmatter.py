"""The text of agent files: YAML with the line of each key, and Markdown as goals with the line each begins at."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 30
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r"##[ \t]+(.*?)[ \t]*#*[ \t]*$")
_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map"))


class AgentFileError(ValueError):
    """What is wrong with a file; ``line`` counts from 1, None where it is the file as a whole.

    ``in_text`` is true where it is in the goals, not in the keys: in a folder these are two files.
    """

    def __init__(self, what: str, line: int | None = None, *, in_text: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.line = line
        self.in_text = in_text


@dataclass(frozen=True, slots=True)
class Values:
    """A mapping of YAML, and the lines of its keys and of what stands below them, by the way to each."""

    values: dict[str, Any]
    lines: dict[tuple[str | int, ...], int]

    def line(self, *way: str | int) -> int | None:
        """The line of a key, or of what is below it: ``line("kit_options", "editor", "window")``. Where that is not there, of
        what it would stand in; None where that is not there either.
        """
        found = (self.lines.get(way[:end]) for end in range(len(way), 0, -1))
        return next((line for line in found if line is not None), None)


@dataclass(frozen=True, slots=True)
class Section:
    """A piece of Markdown below a heading; ``line`` is that of the first line of its text."""

    name: str
    text: str
    line: int


def split(text: str) -> tuple[str, str, int]:
    """Frontmatter, body and the line at which the body begins. Raises AgentFileError."""
    lines = text.split("\n")
    if lines[0].strip() != "---":
        raise AgentFileError("it does not begin with a line of three dashes, after which its frontmatter would stand", 1)
    end = next((n for n, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        raise AgentFileError("its frontmatter is not closed: a second line of three dashes is missing", 1)
    return "\n".join(lines[1:end]), "\n".join(lines[end + 1 :]), end + 2


def values(text: str, first_line: int = 1) -> Values:
    """The mapping that ``text`` is in YAML: only what JSON has, too. Raises AgentFileError."""
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise AgentFileError("it is no mapping of keys to values", first_line)
        _look_over(node, first_line, set(), 0)
        found: dict[str, Any] = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = first_line + mark.line if mark is not None else first_line
        raise AgentFileError(f"it is no YAML: {error.problem or error.context}", line) from error
    except yaml.YAMLError as error:
        raise AgentFileError(f"it is no YAML: {str(error)[:200]}", first_line) from error
    except RecursionError as error:
        raise AgentFileError("it is nested too deep", first_line) from error
    return Values(found, dict(_lines(node, first_line)))


def _lines(node: Any, first_line: int, way: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], int]]:
    """The line of every key and item. The nodes were looked over: they end somewhere, and keys are texts."""
    if node.tag.endswith(":map"):
        below = [((*way, key.value), key, value) for key, value in node.value]
    elif node.tag.endswith(":seq"):
        below = [((*way, number), item, item) for number, item in enumerate(node.value)]
    else:
        return
    for to, at, value in below:
        yield to, first_line + at.start_mark.line
        yield from _lines(value, first_line, to)


def _look_over(node: Any, first_line: int, seen: set[int], depth: int) -> None:
    """Raises AgentFileError for what JSON has not, for keys that stand twice, and for aliases (which can grow without bound)."""
    line = first_line + node.start_mark.line
    if id(node) in seen:
        raise AgentFileError("aliases (*name) are not allowed", line)
    seen.add(id(node))
    if depth > MAX_DEPTH:
        raise AgentFileError(f"it is nested deeper than {MAX_DEPTH}", line)
    if node.tag not in _TAGS:
        raise AgentFileError(f"{node.tag.rsplit(':', 1)[-1]} values are not allowed: put quotes around a text", line)
    if node.tag.endswith((":int", ":float")):
        _number(node, line)
    if node.tag.endswith(":map"):
        _keys(node, first_line)
    for child in _below(node):
        _look_over(child, first_line, seen, depth + 1)


def _keys(node: Any, first_line: int) -> None:
    names: set[str] = set()
    for key, _ in node.value:
        line = first_line + key.start_mark.line
        if key.tag != "tag:yaml.org,2002:str":
            raise AgentFileError(f"the key {str(key.value)[:80]!r} is no text: put it into quotes", line)
        if key.value in names:
            raise AgentFileError(f"the key {key.value[:80]!r} stands there twice", line)
        names.add(key.value)


def _number(node: Any, line: int) -> None:
    if len(node.value) > 40 or (node.tag.endswith(":float") and not math.isfinite(_float(node.value))):
        raise AgentFileError(f"{node.value[:40]!r} is no number that JSON has", line)


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
    """The body in pieces, one per ``## name``; what stands before the first is called "task". Headings in fences are text.

    Raises AgentFileError for a heading without a name or a text, and for a body without any.
    """
    name, began, kept, fence = "task", first_line, list[str](), ""
    found: list[Section] = []
    for number, line in enumerate(body.split("\n"), first_line):
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""
        heading = None if fence else _HEADING.match(line)
        if heading is None:
            kept.append(line)
            continue
        _add(found, name, began, kept)
        name, began, kept = heading[1], number + 1, []
        if not name:
            raise AgentFileError("a heading has no name", number, in_text=True)
    _add(found, name, began, kept)
    if not found:
        raise AgentFileError("there is no text: an agent needs a goal", first_line, in_text=True)
    return found


def _add(found: list[Section], name: str, began: int, kept: list[str]) -> None:
    skipped = next((n for n, line in enumerate(kept) if line.strip()), None)
    if skipped is not None:
        found.append(Section(name, "\n".join(kept[skipped:]).rstrip(), began + skipped))
    elif found or name != "task":
        raise AgentFileError(f"there is no text below the heading {name[:80]!r}", began - 1, in_text=True)
