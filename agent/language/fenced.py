"""The language of commands: a thought, then one fenced block with a command in it, as in a terminal."""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from agent.core.actions import Action
from agent.core.goals import Goal
from agent.core.status import LanguageError
from agent.memory import Memory
from sandbox.environment.base import Environment

from .base import AgentLanguage, reply_of
from .decoding import CUT_HINT, Invocation, checked, decoded_value, invocation_of_calls
from .fences import Fence, fences, nested_end
from .grammar import CODE, FILE_TEXT, SPOKEN, Form, Parameter, arguments_text, ending, forms_of

LINE_CHARS = 16_384  # a path has 4,096 at most
_RANGE = re.compile(r"(\d{1,18}):(\d{1,18})")
HINT = "Send your thought, then exactly one block between two lines of ```, with one command in it."
_WORD = re.compile(r"\s*([A-Za-z_][\w-]*)(?=\s|\Z)[ \t]*")
# A block in one of these is code, not commands: bash would do something else with it.
_NOT_SHELL = frozenset({"python", "python3", "py", "json", "diff", "javascript", "js", "html", "yaml", "toml"})


class FencedLanguage(AgentLanguage):
    """A language of fenced blocks: the one block of a reply is the action, and the text outside it is the thought. Several
    blocks are an error.

    The first word of the block is the action; if it is not the name of one, the whole block is a command of ``run``, if the
    agent has that action. The language after the opening fence is ignored. A block may contain blocks that name their language,
    and any blocks in a text that ends with its marker; otherwise a longer fence marks the outer block. The language learns the
    actions from ``actions``, from ``for_actions``, or, if neither is used, from the latest prompt.
    """

    def __init__(self, actions: Iterable[Action] = ()) -> None:
        self._forms = forms_of(actions)
        self._bound = bool(self._forms)

    def for_actions(self, actions: Sequence[Action]) -> Self:
        """Return this language for exactly these actions."""
        made = copy.copy(self)
        made.bind(actions)
        return made

    def bind(self, actions: Iterable[Action]) -> None:
        """Use exactly these actions from now on, whatever actions prompts are made for."""
        self.forget_replies()
        self._forms, self._bound = forms_of(actions), True

    def construct_prompt(
        self, actions: Sequence[Action], environment: Environment, goals: Sequence[Goal], memory: Memory
    ) -> Any:
        if not self._bound and (forms := forms_of(actions)) != self._forms:
            self.forget_replies()
            self._forms = forms
        return super().construct_prompt(actions, environment, goals, memory)

    def instructions(self) -> str:
        """Return how the model should reply."""
        shell = "Any other first word makes the block a shell command (for a program with the name of a tool: command NAME). "
        return (
            "# Reply\nFirst write your thought: what you learned and what you will do next. Then write exactly one fenced block "
            "with exactly one command:\n```\nCOMMAND\n```\nThe next message has its result. "
            f"A reply without a block, or with several, is not executed. {shell if 'run' in self._forms else ''}"
            "The language after the first ``` does not matter. "
            "If the command itself contains lines of ```, fence the block with ````."
        )

    def tools_text(self, actions: Sequence[Action]) -> str:
        """Return each action with its form and its arguments."""
        blocks = []
        for form in forms_of(actions).values():
            parts = [
                f"## {form.name}",
                form.description,
                f"Form:\n{usage(form)}",
                arguments_text(form.parameters),
                _further(form),
            ]
            blocks.append("\n".join(filter(None, parts)))
        return "\n\n".join(["# Commands", *blocks]) if blocks else ""

    def call_text(self, name: str, arguments: str) -> str:
        """Return a call as the model would have written it."""
        form = self._forms.get(name)
        try:
            args = json.loads(arguments)
        except (ValueError, RecursionError):
            args = None
        line = line_of(form, args) if form is not None and isinstance(args, dict) else None
        if name == "run" and isinstance(args, dict) and set(args) == {"command"}:
            line = str(args["command"])
        return f"```\n{line if line is not None else f'{name} {arguments}'}\n```"

    def parse_response(self, response: Any) -> dict[str, Any]:
        """Return the command of the block, or a native call. Raises LanguageError."""
        reply = reply_of(response)
        if reply.tool_calls:
            return invocation_of_calls(reply).to_dict()
        found = fences(reply.text)
        if not found:
            what = "contains no fenced block" if reply.text.strip() else "is empty"
            raise LanguageError(f"The reply {what}.", HINT)
        content, _, closed = self._block(reply.text, found)
        if not closed and reply.cut:
            raise LanguageError("The reply was cut off in the middle of its block.", CUT_HINT)
        command = self._command(content, found[0].info, reply.text[: found[0].start])
        checked(command.args)
        return command.to_dict()

    def action_span(self, text: str) -> tuple[int, int] | None:
        found = fences(text)
        return (found[0].start, self._block(text, found)[1]) if found else None

    def _block(self, text: str, found: list[Fence]) -> tuple[str, int, bool]:
        """The text of the one block, where the block ends, and whether it was closed. Raises LanguageError."""
        opening, rest = found[0], found[1:]
        begin = opening.end
        if (ends := self._marker_end(text, begin)) is not None:
            rest = [fence for fence in rest if fence.start >= ends]
        if not rest:
            return text[begin:], len(text), False
        closing = nested_end(rest, opening)
        if closing is None:
            raise LanguageError("The block of the reply is not closed, so its end is not clear.", HINT)
        if any(fence.start >= closing.end for fence in rest):
            raise LanguageError(
                "The reply contains several fenced blocks.",
                f"{HINT} If the command itself has lines of ```, fence the block with ````.",
            )
        return text[begin : closing.start].removesuffix("\n"), closing.end, True

    def _marker_end(self, text: str, begin: int) -> int | None:
        """Where the text of a command with a marker ends; blocks after it count again."""
        word = _WORD.match(text, begin)
        form = self._forms.get(word[1]) if word else None
        if word is None or form is None or text_block(form) is None:
            return None
        line = re.compile(rf"^[ \t]*{re.escape(end_marker(form))}[ \t]*$", re.MULTILINE).search(text, word.end())
        return None if line is None else line.end()

    def _command(self, content: str, info: str, thought: str) -> Invocation:
        word = _WORD.match(content)
        form = self._forms.get(word[1]) if word else None
        if word is not None and form is not None:
            return Invocation(form.name, _arguments(form, content[word.end() :]))
        if not content.strip():
            raise LanguageError("The block of the reply is empty.", HINT)
        if content.strip() == "exit" and (end := ending(self._forms, thought)):
            return Invocation(*end)
        if "run" not in self._forms and self._forms:
            first = word[1] if word else content.split(maxsplit=1)[0][:40]
            raise LanguageError(f"There is no command {first!r}.", f"Use one of: {', '.join(self._forms)}.")
        if info.split()[:1] and info.split()[0].lower() in _NOT_SHELL:
            raise LanguageError(
                f"The block is marked as {info.split()[0][:20]}, but commands are shell commands.",
                "Write a file and run it, or leave the mark out if it is a shell command.",
            )
        return Invocation("run", {"command": content.strip("\r\n")})


def _arguments(form: Form, rest: str) -> dict[str, Any]:
    """Parse what follows the word of a command. Raises LanguageError for lines that belong to no argument."""
    text = free_text(form)
    if text is not None and not (rest.startswith("{") and _is_call(form, rest)):
        given = rest.strip() if text.name not in CODE | FILE_TEXT else rest.strip("\r\n")
        return {text.name: given} if given or text.required else {}
    line, _, further = rest.partition("\n")
    lines = text_block(form)
    if rest.startswith("{"):
        return read_line(form, rest)
    args = read_line(form, line.strip())
    if lines is None:
        if further.strip():
            raise LanguageError(
                f"{form.name} takes one line, and {further.strip()[:80]!r} follows it.", "Send one command per block."
            )
        return args
    end = re.compile(rf"^[ \t]*{re.escape(end_marker(form))}[ \t]*$", re.MULTILINE).search(further)
    if end is None:
        raise LanguageError(
            f"The text of {form.name} does not end: there is no line {end_marker(form)}.", f"Its form is: {usage(form)}"
        )
    if further[end.end() :].strip():
        raise LanguageError(
            f"Something follows {end_marker(form)}: {further[end.end() :].strip()[:80]!r}.",
            "Send one command per block.",
        )
    return args | {lines.name: further[: end.start()]}


def _is_call(form: Form, rest: str) -> bool:
    """Whether the rest is one JSON object with known arguments, the required ones among them."""
    try:
        args = read_line(form, rest)
    except LanguageError:
        return False
    return {p.name for p in form.required} <= set(args) <= {p.name for p in form.parameters}


def _further(form: Form) -> str:
    """How to pass arguments out of order, or those without a place on the line."""
    if takes_json(form) or len(form.required) == len(form.parameters) or len(form.parameters) < 2:
        return ""
    return f'With other arguments, all as one JSON object: {form.name} {{"{form.parameters[0].name}": ..., ...}}'


# --- command lines: a word, then arguments by place. The prompt and the parser use one form. ---------------------------
def end_marker(form: Form) -> str:
    """Return the line that ends a text of several lines."""
    return f"end_of_{form.name}"


def free_text(form: Form) -> Parameter | None:
    """Return the argument that takes all text after the word, unquoted; None for an action that needs further ones."""
    body = form.body if form.required else next(iter(form.parameters), None)
    alone = len(form.required or form.parameters) == 1
    return body if body is not None and alone and body.is_text and body.name in SPOKEN else None


def text_block(form: Form) -> Parameter | None:
    """Return the argument that is written in lines of its own, up to the marker."""
    texts = [p for p in form.required if p.name in FILE_TEXT]
    return texts[0] if len(texts) == 1 and free_text(form) is None else None


def positional(form: Form) -> tuple[Parameter, ...]:
    """Return the arguments by their place on the line; () for an action that takes its arguments as JSON."""
    if takes_json(form):
        return ()
    return tuple(p for p in form.parameters if p is not text_block(form) and (p.required or _short(p)))


def takes_json(form: Form) -> bool:
    """Return whether the arguments are more than a line can hold."""
    texts = [p for p in form.required if p.name in FILE_TEXT]
    return free_text(form) is None and (len(texts) > 1 or not all(_short(p) for p in form.required))


def usage(form: Form) -> str:
    """Return the form of the command, as the prompt shows it."""
    if (text := free_text(form)) is not None:
        return f"{form.name} {text.name.upper()}"
    if takes_json(form):
        return f"{form.name} {{{', '.join(f'{json.dumps(p.name)}: ...' for p in form.required)}}}"
    words = [p.name.upper() if p.required else f"[{p.name.upper()}]" for p in positional(form)]
    line = re.sub(r"\bSTART END\b", "START:END", " ".join([form.name, *words]))
    text = text_block(form)
    return line if text is None else f"{line}\n{text.name.upper()}\n{end_marker(form)}"


def read_line(form: Form, rest: str) -> dict[str, Any]:
    """Parse the arguments that follow the word on its line. Raises LanguageError."""
    if rest.startswith("{"):
        return _json(form, rest)
    if takes_json(form):
        raise _misused(form, "takes its arguments as one JSON object")
    if len(rest) > LINE_CHARS:
        raise _misused(form, f"has a line of {len(rest)} characters; the maximum is {LINE_CHARS}")
    try:
        words = shlex.split(rest)
    except ValueError:
        raise _misused(form, f"has a quote that is not closed: {rest[:80]!r}") from None
    places = positional(form)
    words = _split_ranges(words, places)
    if len(words) > len(places):
        raise _misused(form, f"takes at most {len(places)} argument{'' if len(places) == 1 else 's'}, not {len(words)}")
    return {p.name: p.value(word) for p, word in zip(places, words, strict=False)}


def line_of(form: Form, args: Mapping[str, Any]) -> str | None:
    """Return the command with these arguments; None if no line can express them."""
    text = free_text(form)
    if text is not None and set(args) == {text.name} and isinstance(args[text.name], str):
        return f"{form.name} {args[text.name]}"
    lines, places = text_block(form), positional(form)
    given = [p for p in places if p.name in args]
    known = {p.name for p in given} | ({lines.name} if lines else set())
    in_place = list(places[: len(given)]) == given and set(args) <= known
    if takes_json(form) or free_text(form) is not None or not in_place:
        return None
    words = [shlex.quote(v) if isinstance(v, str) else json.dumps(v) for v in (args[p.name] for p in given)]
    if [p.name for p in given[:2]] == ["start", "end"]:
        words[:2] = [":".join(words[:2])]
    line = " ".join([form.name, *words])
    if lines is None:
        return line
    body = args.get(lines.name)
    if not isinstance(body, str):
        return None
    return f"{line}\n{body}{'' if body.endswith(chr(10)) or not body else chr(10)}{end_marker(form)}"


def _json(form: Form, rest: str) -> dict[str, Any]:
    try:
        value = checked(decoded_value(rest))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise _misused(form, "is not followed by a valid JSON object")
    return value


def _split_ranges(words: list[str], places: tuple[Parameter, ...]) -> list[str]:
    """Split ``3:5`` where two numbers are expected."""
    split: list[str] = []
    for word in words:
        pair = _RANGE.fullmatch(word)
        here = places[len(split) : len(split) + 2]
        if pair and len(here) == 2 and all("integer" in p.kinds for p in here):
            split += pair.groups()
        else:
            split.append(word)
    return split


def _short(parameter: Parameter) -> bool:
    return bool(parameter.kinds) and not parameter.kinds & {"object", "array"}


def _misused(form: Form, what: str) -> LanguageError:
    return LanguageError(f"The command {form.name} {what}.", f"Its form is: {usage(form)}")
