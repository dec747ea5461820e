"""Finding tags in what a model wrote, in linear time. Within a fenced block, a code span or another tag they are text."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from agent.status import LanguageError

from .fences import Fence, closings, fences

_TOKEN = re.compile(r"<(?P<name>[A-Za-z_][\w-]*)|`+|~{3,}")
_ATTRIBUTE = re.compile(r"""\s+([A-Za-z_]\w*)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'<>]+?)(?=\s|/?>))""")
_TAG_END = re.compile(r"\s*(/?)>")
_SPAN_CHARS = 1000  # code within a sentence is shorter than this
_ENTITIES = {"&quot;": '"', "&apos;": "'", "&lt;": "<", "&gt;": ">", "&amp;": "&"}
_ENTITY = re.compile("|".join(_ENTITIES))


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag of an action: attributes as they were written, which of them in quotes, and body."""

    name: str
    attributes: dict[str, str]
    quoted: frozenset[str]
    body: str
    closed: bool
    start: int
    end: int


@dataclass(slots=True)
class Tags:
    """The tags that count, in order, and whether there were others within fenced blocks."""

    text: str
    names: Collection[str]
    prefix: str
    found: list[Tag] = field(default_factory=list)
    fenced: bool = False

    def outside(self) -> str:
        """The text without the tags."""
        parts, at = [], 0
        for tag in self.found:
            parts.append(self.text[at : tag.start])
            at = tag.end
        return "".join([*parts, self.text[at:]]).strip()

    def means(self, name: str) -> bool:
        """Whether a tag of that name is one of an action."""
        return name in self.names or (name.startswith(self.prefix) and len(name) > len(self.prefix))

    def any_in(self, start: int, end: int) -> bool:
        """Whether anything in that stretch looks like one."""
        return any(self.means(m["name"] or "") for m in _TOKEN.finditer(self.text, start, end))


def find_tags(text: str, names: Collection[str], prefix: str) -> Tags:
    """The tags of ``text`` whose name is one of ``names`` or begins with ``prefix``.

    A tag that nothing closes is the last one, and its body is the rest. Raises LanguageError where that rest has further
    tags: which of them are text and which are meant cannot be told then.
    """
    tags = Tags(text, names, prefix)
    lines = fences(text)
    ends = closings(lines)
    by_place = {fence.mark_at: number for number, fence in enumerate(lines)}
    at = 0
    while (token := _TOKEN.search(text, at)) is not None:
        name = token["name"]
        if name is None:
            at = _after_code(tags, token, lines, ends, by_place)
        elif tags.means(name) and (tag := _tag(text, token, name)) is not None:
            if not tag.closed and tags.any_in(tag.end - len(tag.body), tag.end):
                raise LanguageError(
                    f"The tag <{name}> is not closed, and other tags follow it.",
                    f"Close it with </{name}>, and send one tag in a reply.",
                )
            tags.found.append(tag)
            at = tag.end
        else:
            at = token.end()
    return tags


def escaped(text: str) -> str:
    """``text`` as it stands in a quoted attribute."""
    return text.replace("&", "&amp;").replace('"', "&quot;")


def _after_code(
    tags: Tags, token: re.Match[str], lines: list[Fence], ends: list[int | None], by_place: dict[int, int]
) -> int:
    """Where the block or the code span that begins at ``token`` is over; after the marks where it never is."""
    number = by_place.get(token.start())
    if number is not None:
        end = ends[number]
        if end is None:
            return token.end()
        tags.fenced = tags.fenced or tags.any_in(lines[number].end, lines[end].start)
        return lines[end].end
    marks = token.group()
    if marks[0] == "~":
        return token.end()
    line_end = tags.text.find("\n", token.end(), token.end() + _SPAN_CHARS)
    limit = token.end() + _SPAN_CHARS if line_end < 0 else line_end
    closing = re.compile(f"(?<!`){marks}(?!`)").search(tags.text, token.end(), limit)
    return token.end() if closing is None else closing.end()


def _tag(text: str, token: re.Match[str], name: str) -> Tag | None:
    """The tag that begins at ``token``; None where its opening is no tag."""
    attributes: dict[str, str] = {}
    quoted = set()
    at = token.end()
    while (given := _ATTRIBUTE.match(text, at)) is not None:
        key, double, single, bare = given.groups()
        if bare is None:
            attributes[key] = _ENTITY.sub(lambda m: _ENTITIES[m[0]], double if double is not None else single)
            quoted.add(key)
        else:
            attributes[key] = bare
        at = given.end()
    opened = _TAG_END.match(text, at)
    if opened is None:
        return None
    at = opened.end()
    if opened[1]:
        return Tag(name, attributes, frozenset(quoted), "", True, token.start(), at)
    close = f"</{name}>"
    end = text.find(close, at)
    if end < 0:
        return Tag(name, attributes, frozenset(quoted), text[at:], False, token.start(), len(text))
    return Tag(name, attributes, frozenset(quoted), text[at:end], True, token.start(), end + len(close))
