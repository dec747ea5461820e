"""The language of tags: an action is a tag around its text."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Self

from agent.core.actions import Action
from agent.core.goals import Goal
from agent.core.status import LanguageError
from agent.memory import Memory
from sandbox.envelope import Notice
from sandbox.environment.base import Environment
from sandbox.frozen import dataclass

from .base import AgentLanguage, reply_of
from .decoding import CUT_HINT, MANY_ACTIONS, Invocation, checked, invocation_of_calls
from .fences import Fence, closings, fences
from .grammar import FILE_TEXT, Form, Parameter, arguments_text, ending, forms_of

PREFIX = "execute_"
# Tags that are not called execute_NAME.
NAMES: Mapping[str, str] = {
    "execute_bash": "run",
    "finish": "finish",
    "message": "message",
    "think": "think",
    "reject": "reject",
    "submit": "submit",
}
TAG_IN_FENCE = Notice(
    "tag_in_fence",
    "A tag in a fenced block is text and was not carried out.",
    "To have a tag carried out, write it outside any fenced block.",
)
_TOKEN = re.compile(r"<(?P<name>[A-Za-z_][\w-]*)|`+|~{3,}")
_ATTRIBUTE = re.compile(r"""\s+([A-Za-z_]\w*)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'<>]+?)(?=\s|/?>))""")
_TAG_END = re.compile(r"\s*(/?)>")
_SPAN_CHARS = 1000  # code within a sentence is shorter than this
_ENTITIES = {"&quot;": '"', "&apos;": "'", "&lt;": "<", "&gt;": ">", "&amp;": "&"}
_ENTITY = re.compile("|".join(_ENTITIES))
TAG_NAME = re.compile(r"[A-Za-z_][\w-]*")


class TagLanguage(AgentLanguage):
    """A language of tags: the first complete tag of a reply counts, left to right; a last one that is not closed counts as
    closed.

    A tag is called ``execute_NAME`` after its action, or as ``tags`` says (tag → action). Attributes are arguments; the body is
    the one required text, or has an element for each argument. Tags in a fenced block, in a code span or in another tag are
    text. A reply without a tag is the action ``message``, if the agent has it. The language learns the actions from
    ``actions``, from ``for_actions``, or, if neither is used, from the latest prompt. Raises ValueError for invalid ``tags``.
    """

    def __init__(self, tags: Mapping[str, str] | None = None, actions: Iterable[Action] = ()) -> None:
        wrong = next((tag for tag in tags or () if not TAG_NAME.fullmatch(tag)), None)
        if wrong is not None:
            raise ValueError(f"{wrong!r} is not a valid tag name.")
        self._given = dict(tags or {})
        self._know(actions)
        self._bound = bool(self._forms)

    def for_actions(self, actions: Sequence[Action]) -> Self:
        """Return this language for exactly these actions."""
        made = copy.copy(self)
        made.bind(actions)
        return made

    def bind(self, actions: Iterable[Action]) -> None:
        """Use exactly these actions from now on, whatever actions prompts are made for."""
        self._know(actions)
        self._bound = True

    def _know(self, actions: Iterable[Action]) -> None:
        self.forget_replies()
        self._forms = forms_of(actions)
        self._tags = {tag: name for tag, name in NAMES.items() if not self._forms or name in self._forms}
        named = {PREFIX + name for name in self._forms if name not in self._tags.values()}
        self._tags = {tag: name for tag, name in self._tags.items() if tag not in named} | self._given

    def construct_prompt(
        self, actions: Sequence[Action], environment: Environment, goals: Sequence[Goal], memory: Memory
    ) -> Any:
        if not self._bound and forms_of(actions) != self._forms:
            self._know(actions)
        return super().construct_prompt(actions, environment, goals, memory)

    def instructions(self) -> str:
        """Return how the model should reply."""
        silent = "is a message to the user" if "message" in self._forms else "is invalid"
        return (
            "# Reply\nSay briefly what you will do and why, then write exactly one of the tags above, and close it. "
            "The next message has its result. If a reply has several tags, only the first is executed. "
            f"Tags in a fenced block, in `code`, or inside another tag are plain text. A reply without a tag {silent}."
        )

    def tools_text(self, actions: Sequence[Action]) -> str:
        """Return each action with its tag and its arguments."""
        blocks = []
        for form in forms_of(actions).values():
            tag = self._tag_of(form.name)
            notes = {form.body.name: "the body"} if form.body else {}
            shown = [p for p in form.parameters if p is not form.body]
            how = f"Attributes:\n{arguments_text(shown, notes)}" if shown else ""
            if form.body is None and form.required:
                how = f"Arguments, each as an element in the tag:\n{arguments_text(form.parameters)}"
            blocks.append("\n".join(filter(None, [f"## {tag}", form.description, _example(tag, form), how])))
        return "\n\n".join(["# Tools", *blocks]) if blocks else ""

    def call_text(self, name: str, arguments: str) -> str:
        """Return a call as the model would have written it."""
        form, tag = self._forms.get(name), self._tag_of(name)
        try:
            args = json.loads(arguments)
        except (ValueError, RecursionError):
            args = None
        if not isinstance(args, dict):
            return f"<{tag}>\n{arguments}\n</{tag}>"
        body = form.body.name if form and form.body else None
        if body is None and form and form.required:
            parts = "".join(f"<{k}>{_inner(k, v)}</{k}>\n" for k, v in args.items())
            return f"<{tag}>\n{parts}</{tag}>"
        attributes = "".join(f" {k}={_attribute(v)}" for k, v in args.items() if k != body)
        if body is None or body not in args:
            return f"<{tag}{attributes}/>"
        return f"<{tag}{attributes}>{_inner(body, args[body])}</{tag}>"

    def parse_response(self, response: Any) -> dict[str, Any]:
        """Return the first tag, or a native call. Raises LanguageError."""
        reply = reply_of(response)
        if reply.tool_calls:
            return invocation_of_calls(reply).to_dict()
        tags = find_tags(reply.text, self._tags, PREFIX)
        if not tags.found:
            return self._said(reply.text, tags).to_dict()
        first = tags.found[0]
        if not first.closed and reply.cut:
            raise LanguageError(f"The reply was cut off in the middle of <{first.name}>.", CUT_HINT)
        name = self._tags.get(first.name) or first.name.removeprefix(PREFIX)
        if name == "run" and first.body.strip() == "exit" and (end := ending(self._forms, tags.outside())):
            return Invocation(end[0], checked(end[1])).to_dict()
        notices = [*([MANY_ACTIONS] if len(tags.found) > 1 else []), *([TAG_IN_FENCE] if tags.fenced else [])]
        return Invocation(name, checked(self._args(first, self._forms.get(name))), tuple(notices)).to_dict()

    def action_span(self, text: str) -> tuple[int, int] | None:
        """See the base class; a reply without a tag is a message to the user as a whole."""
        tags = find_tags(text, self._tags, PREFIX)
        return (tags.found[0].start, tags.found[0].end) if tags.found else (0, len(text))

    def _said(self, text: str, tags: Tags) -> Invocation:
        form = self._forms.get("message")
        if form is not None and form.body is not None and text.strip():
            return Invocation(
                "message", checked({form.body.name: text.strip()}), (TAG_IN_FENCE,) if tags.fenced else ()
            )
        if tags.fenced:
            raise LanguageError(
                "The only tags in the reply are in a fenced block, where they are text.", TAG_IN_FENCE.hint
            )
        what = "contains no tool tag" if text.strip() else "is empty"
        known = ", ".join(f"<{self._tag_of(name)}>" for name in self._forms)
        raise LanguageError(f"The reply {what}.", f"Send one of the tags {known}." if known else "Send one tag.")

    def _args(self, tag: Tag, form: Form | None) -> dict[str, Any]:
        if form is None:
            return dict(tag.attributes)
        args = {k: _attribute_value(form.parameter(k), v, k in tag.quoted) for k, v in tag.attributes.items()}
        if form.body is not None:
            return (
                args
                if form.body.name in args and not tag.body.strip()
                else args | {form.body.name: form.body.body(tag.body)}
            )
        if not tag.body.strip():
            return args
        return args | _elements(tag, form)

    def _tag_of(self, name: str) -> str:
        return next((tag for tag, action in self._tags.items() if action == name), PREFIX + name)


def _elements(tag: Tag, form: Form) -> dict[str, Any]:
    """Parse the arguments in the body, one element each, up to the next element or the end of the body."""
    names = "|".join(re.escape(p.name) for p in form.parameters)
    opening = re.compile(rf"\s*<({names})>")
    args: dict[str, Any] = {}
    at = 0
    while (opened := opening.match(tag.body, at)) is not None:
        parameter = form.parameter(opened[1])
        close = re.compile(rf"</{re.escape(opened[1])}>(?=\s*(?:<(?:{names})>|\Z))")
        closed = close.search(tag.body, opened.end())
        if parameter is None or closed is None or parameter.name in args:
            break
        args[parameter.name] = parameter.body(tag.body[opened.end() : closed.start()])
        at = closed.end()
    if tag.body[at:].strip():
        wanted = ", ".join(f"<{p.name}>" for p in form.parameters)
        raise LanguageError(
            f"The body of <{tag.name}> has text that belongs to no argument: {tag.body[at:].strip()[:80]!r}.",
            f"Write each argument as an element of its own, once and closed: {wanted}.",
        )
    return args


def _attribute_value(parameter: Parameter | None, text: str, quoted: bool) -> Any:
    """The value of an attribute, of the type in the schema; without quotes it may also be null."""
    if parameter is None:
        return text
    if not quoted and text == "null" and "null" in parameter.kinds:
        return None
    return parameter.value(text)


def _attribute(value: Any) -> str:
    if isinstance(value, str):
        return f'"{escaped(value)}"'
    text = json.dumps(value, ensure_ascii=False)
    return text if isinstance(value, int | float | None) else f'"{escaped(text)}"'


def _inner(name: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    laid_out = name in FILE_TEXT or "\n" in text
    return f"\n{text}{'' if name in FILE_TEXT else chr(10)}" if laid_out else text


def _example(tag: str, form: Form) -> str:
    needed = "".join(f' {p.name}="..."' if p.is_text else f" {p.name}=..." for p in form.required if p is not form.body)
    if form.body is not None:
        return f"<{tag}{needed}>\n{form.body.name}\n</{tag}>"
    if not form.required:
        return f"<{tag}/>"
    return "\n".join([f"<{tag}>", *(f"<{p.name}>...</{p.name}>" for p in form.required), f"</{tag}>"])


# --- finding tags, in linear time: in a fenced block, a code span or another tag they are text ------------------------
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
    """The tags that count, in order, and whether fenced blocks held others."""

    text: str
    names: Collection[str]
    prefix: str
    found: list[Tag] = field(default_factory=list)
    fenced: bool = False

    def outside(self) -> str:
        """Return the text without the tags."""
        parts, at = [], 0
        for tag in self.found:
            parts.append(self.text[at : tag.start])
            at = tag.end
        return "".join([*parts, self.text[at:]]).strip()

    def means(self, name: str) -> bool:
        """Return whether a tag of that name belongs to an action."""
        return name in self.names or (name.startswith(self.prefix) and len(name) > len(self.prefix))

    def any_in(self, start: int, end: int) -> bool:
        """Return whether anything between the two places looks like such a tag."""
        return any(self.means(m["name"] or "") for m in _TOKEN.finditer(self.text, start, end))


def find_tags(text: str, names: Collection[str], prefix: str) -> Tags:
    """Return the tags of ``text`` whose name is one of ``names`` or begins with ``prefix``.

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
    """Return ``text`` escaped for a quoted attribute."""
    return text.replace("&", "&amp;").replace('"', "&quot;")


def _after_code(
    tags: Tags, token: re.Match[str], lines: list[Fence], ends: list[int | None], by_place: dict[int, int]
) -> int:
    """Where the block or code span that begins at ``token`` ends; the end of its marks if nothing closes it."""
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
    """Parse the tag that begins at ``token``; None if it is not a tag."""
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
