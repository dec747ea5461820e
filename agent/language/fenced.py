"""The language of commands: a thought, then one fenced block with a command in it, as in a terminal."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Self

from agent.actions import Action
from agent.goals import Goal
from agent.memory import Memory
from agent.status import LanguageError
from sandbox.environment.base import Environment

from .base import AgentLanguage, reply_of
from .command_line import in_json, line_of, marker, read_line, spoken, usage, written
from .decoding import CUT_HINT, Invocation, checked, invocation_of_calls
from .fences import Fence, fences, nested_end
from .grammar import CODE, FILE_TEXT, Form, arguments_text, ending, forms_of

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
        """The same for exactly these actions."""
        made = copy.copy(self)
        made.bind(actions)
        return made

    def bind(self, actions: Iterable[Action]) -> None:
        """Know exactly these actions from now on, whatever prompts are made for."""
        self._forms, self._bound = forms_of(actions), True

    def construct_prompt(
        self, actions: Sequence[Action], environment: Environment, goals: Sequence[Goal], memory: Memory
    ) -> Any:
        """The prompt; see the base class."""
        if not self._bound:
            self._forms = forms_of(actions)
        return super().construct_prompt(actions, environment, goals, memory)

    def instructions(self) -> str:
        """How the model is to reply."""
        shell = "Any other first word makes the block a shell command (a program called like a tool: command NAME). "
        return (
            "# Reply\nFirst your thought: what you have learned and what you do next. Then exactly one fenced block with "
            "exactly one command:\n```\nCOMMAND\n```\nWhat it answers comes in the next message. A reply with several "
            f"blocks, or with none, is not carried out. {shell if 'run' in self._forms else ''}"
            "The language after the first ``` does not matter. "
            "If the command itself has lines of ```, fence the block with ````."
        )

    def tools_text(self, actions: Sequence[Action]) -> str:
        """Each action with its form and its arguments."""
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
        """A call as the model would have written it."""
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
        """The command of the block; a native call is taken as well. Raises LanguageError."""
        reply = reply_of(response)
        if reply.tool_calls:
            return invocation_of_calls(reply).to_dict()
        found = fences(reply.text)
        if not found:
            what = "holds no fenced block" if reply.text.strip() else "is empty"
            raise LanguageError(f"The reply {what}.", HINT)
        content, _, closed = self._block(reply.text, found)
        if not closed and reply.cut:
            raise LanguageError("The reply was cut off in the middle of its block.", CUT_HINT)
        command = self._command(content, found[0].info, reply.text[: found[0].start])
        checked(command.args)
        return command.to_dict()

    def action_span(self, text: str) -> tuple[int, int] | None:
        """See the base class."""
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
            raise LanguageError("It cannot be told where the block of the reply ends: it is not closed.", HINT)
        if any(fence.start >= closing.end for fence in rest):
            raise LanguageError(
                "The reply holds several fenced blocks.",
                f"{HINT} If the command itself has lines of ```, fence the block with ````.",
            )
        return text[begin : closing.start].removesuffix("\n"), closing.end, True

    def _marker_end(self, text: str, begin: int) -> int | None:
        """Where the text of a command with a marker ends, beyond which blocks count again."""
        word = _WORD.match(text, begin)
        form = self._forms.get(word[1]) if word else None
        if word is None or form is None or written(form) is None:
            return None
        line = re.compile(rf"^[ \t]*{re.escape(marker(form))}[ \t]*$", re.MULTILINE).search(text, word.end())
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
                f"The block is marked as {info.split()[0][:20]}, and commands are for the shell.",
                "Write a file and run it, or leave the mark out if it is a shell command.",
            )
        return Invocation("run", {"command": content.strip("\r\n")})


def _arguments(form: Form, rest: str) -> dict[str, Any]:
    """What follows the word of a command. Raises LanguageError for lines that belong to nothing."""
    text = spoken(form)
    if text is not None and not (rest.startswith("{") and _is_call(form, rest)):
        given = rest.strip() if text.name not in CODE | FILE_TEXT else rest.strip("\r\n")
        return {text.name: given} if given or text.required else {}
    line, _, further = rest.partition("\n")
    lines = written(form)
    if rest.startswith("{"):
        return read_line(form, rest)
    args = read_line(form, line.strip())
    if lines is None:
        if further.strip():
            raise LanguageError(
                f"{form.name} takes one line, and {further.strip()[:80]!r} follows it.", "Send one command in a block."
            )
        return args
    end = re.compile(rf"^[ \t]*{re.escape(marker(form))}[ \t]*$", re.MULTILINE).search(further)
    if end is None:
        raise LanguageError(
            f"The text of {form.name} does not end: there is no line {marker(form)}.", f"Its form is: {usage(form)}"
        )
    if further[end.end() :].strip():
        raise LanguageError(
            f"Something follows {marker(form)}: {further[end.end() :].strip()[:80]!r}.", "Send one command in a block."
        )
    return args | {lines.name: further[: end.start()]}


def _is_call(form: Form, rest: str) -> bool:
    """Whether what follows is the arguments as one JSON object: all of them are known, and the needed ones are there."""
    try:
        args = read_line(form, rest)
    except LanguageError:
        return False
    return {p.name for p in form.required} <= set(args) <= {p.name for p in form.parameters}


def _further(form: Form) -> str:
    """How arguments are given that are not the first ones, or have no place on the line."""
    if in_json(form) or len(form.required) == len(form.parameters) or len(form.parameters) < 2:
        return ""
    return f'With other arguments, all as one JSON object: {form.name} {{"{form.parameters[0].name}": ..., ...}}'
