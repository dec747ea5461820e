"""The language of tags: an action is a tag around the text that it is about, as models write it most easily."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from agent.actions import Action
from agent.goals import Goal
from agent.memory import Memory
from agent.status import LanguageError
from sandbox.envelope import Notice
from sandbox.environment.base import Environment

from .base import AgentLanguage, reply_of
from .decoding import CUT_HINT, MANY_ACTIONS, Invocation, checked, invocation_of_calls
from .grammar import FILE_TEXT, Form, Parameter, arguments_text, ending, forms_of
from .tag_scan import Tag, Tags, escaped, find_tags

PREFIX = "execute_"
# Tags that are not called execute_NAME.
NAMES: Mapping[str, str] = {
    "execute_bash": "run", "finish": "finish", "message": "message", "think": "think", "reject": "reject",
    "submit": "submit",
}  # fmt: skip
TAG_IN_FENCE = Notice(
    "tag_in_fence",
    "A tag in a fenced block is text and was not carried out.",
    "To have a tag carried out, write it outside of any fenced block.",
)
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
            raise ValueError(f"{wrong!r} is no name of a tag.")
        self._given = dict(tags or {})
        self._know(actions)
        self._bound = bool(self._forms)

    def for_actions(self, actions: Sequence[Action]) -> Self:
        """The same for exactly these actions."""
        made = copy.copy(self)
        made.bind(actions)
        return made

    def bind(self, actions: Iterable[Action]) -> None:
        """Know exactly these actions from now on, whatever prompts are made for."""
        self._know(actions)
        self._bound = True

    def _know(self, actions: Iterable[Action]) -> None:
        self._forms = forms_of(actions)
        self._tags = {tag: name for tag, name in NAMES.items() if not self._forms or name in self._forms}
        named = {PREFIX + name for name in self._forms if name not in self._tags.values()}
        self._tags = {tag: name for tag, name in self._tags.items() if tag not in named} | self._given

    def construct_prompt(
        self, actions: Sequence[Action], environment: Environment, goals: Sequence[Goal], memory: Memory
    ) -> Any:
        """The prompt; see the base class."""
        if not self._bound:
            self._know(actions)
        return super().construct_prompt(actions, environment, goals, memory)

    def instructions(self) -> str:
        """How the model is to reply."""
        silent = "is said to the user" if "message" in self._forms else "is no reply"
        return (
            "# Reply\nSay shortly what you are about to do and why, then send exactly one tag of the tools above, closed. What it "
            "answers comes in the next message. Of several tags only the first is carried out. Tags in a fenced block, in "
            f"`code`, or inside another tag are text. A reply without a tag {silent}."
        )

    def tools_text(self, actions: Sequence[Action]) -> str:
        """Each action with its tag and its arguments."""
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
        """A call as the model would have written it."""
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
        """The first tag; a native call is taken as well. Raises LanguageError."""
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
        """See the base class; a reply without a tag is all what it says to the user."""
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
                "The only tags of the reply stand in a fenced block, where they are text.", TAG_IN_FENCE.hint
            )
        what = "holds no tag of a tool" if text.strip() else "is empty"
        known = ", ".join(f"<{self._tag_of(name)}>" for name in self._forms)
        raise LanguageError(f"The reply {what}.", f"Send one of the tags {known}." if known else "Send one tag.")

    def _args(self, tag: Tag, form: Form | None) -> dict[str, Any]:
        if form is None:
            return dict(tag.attributes)
        args = {k: _given(form.parameter(k), v, k in tag.quoted) for k, v in tag.attributes.items()}
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
    """The arguments in the body, one element each. An element ends where the next one begins, or the body ends, after its tag."""
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


def _given(parameter: Parameter | None, text: str, quoted: bool) -> Any:
    """The value of an attribute: what the schema wants; without quotes it may also be null."""
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
