"""The base class of languages, which is the plainest one itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Self

from agent.core.actions import Action
from agent.core.goals import Goal, in_order
from agent.core.prompt import Prompt, current_sections
from agent.core.status import LanguageError
from agent.memory import Memory
from agent.model.response import Response, text_of_reply
from sandbox.environment.base import Environment

from .decoding import Invocation, find_invocation, invocation_of_calls, span_of_invocation
from .turns import Rendered, Renderer, Turn, conversation, json_call, named, text_messages

EXAMPLES = "# Examples\nThese show how the work goes. They are made up: nothing in them has happened."
# The text of a reply is in the memory anyway; this bounds the dictionary of a language that serves very many runs.
MAX_KNOWN_REPLIES = 10_000
_USE = re.compile(r"\buse\s+([\w.-]+)\s*$", re.IGNORECASE)


class AgentLanguage:
    """Write prompts and parse replies; subclasses override either method.

    The base writes everything into text and reads ``{"tool", "args"}`` as a mapping, as a native call, as the JSON in
    a text, or as the words "use NAME". Both methods are pure: the same input gives the same output.
    """

    def construct_prompt(
        self, actions: Sequence[Action], environment: Environment, goals: Sequence[Goal], memory: Memory
    ) -> Any:
        """Return the prompt: goals and actions, sorted, then the memory, then the environment's present description of itself."""
        parts = (goals_text(goals), self.tools_text(actions), self.instructions())
        turns = self.rendered(memory, actions)
        system = "\n\n".join(part for part in parts if part)
        return prompt_of(system, text_messages(turns, self.call_text), environment, goals, actions)

    def rendered(self, memory: Memory, actions: Sequence[Action]) -> list[tuple[Turn, Rendered]]:
        """Return the conversation that the memory shows, each turn with its content as text."""
        renderer: Renderer = self.__dict__.setdefault("_renderer", Renderer())
        return renderer.render(named(conversation(memory.get_memories()), self.tool_of), actions)

    def for_actions(self, actions: Sequence[Action]) -> Self:  # noqa: ARG002
        """Return this language for an agent with these actions; some languages need them to parse a reply."""
        return self

    def tools_text(self, actions: Sequence[Action]) -> str:
        """Return the actions as the prompt lists them, in the form in which the model must call them."""
        return actions_text(actions)

    def call_text(self, name: str, arguments: str) -> str:
        """Return a call, whose arguments are JSON text, as a model would have written it in this language."""
        return json_call(name, arguments)

    def tool_of(self, text: str) -> str | None:
        """Return the tool that a text reply has chosen; None for a reply that cannot be parsed.

        Each prompt asks for every remembered reply, so that the answer is remembered: a reply is parsed here once, not once for
        each step that follows it.
        """
        known: dict[str, str | None] = self.__dict__.setdefault("_tools_of_replies", {})
        if text not in known:
            if len(known) >= MAX_KNOWN_REPLIES:
                known.clear()
            known[text] = self._parsed_tool(text)
        return known[text]

    def _parsed_tool(self, text: str) -> str | None:
        try:
            return str(self.parse_response(text)["tool"])
        except LanguageError:
            return None

    def forget_replies(self) -> None:
        """Parse replies anew: the language now reads them for other actions."""
        self.__dict__["_tools_of_replies"] = {}

    def instructions(self) -> str:
        """Return the instructions on how to reply."""
        return (
            "# Reply\nReply with one JSON object and nothing after it:\n"
            '{"tool": "NAME", "args": {...}}\nText before it is kept as your reasoning.'
        )

    def parse_response(self, response: Any) -> dict[str, Any]:
        """Return ``{"tool", "args"}``, with ``notices`` if the model should know something. Raises LanguageError."""
        reply = reply_of(response)
        if reply.tool_calls:
            return invocation_of_calls(reply).to_dict()
        found = find_invocation(reply.text, reply.cut)
        if found is not None:
            return found.to_dict()
        used = _USE.search(reply.text)
        if used:
            return Invocation(used.group(1), {}).to_dict()
        raise LanguageError(
            "The reply contains no action." if reply.text.strip() else "The reply is empty.",
            'Reply with one JSON object: {"tool": "NAME", "args": {...}}.',
        )

    def parse_calls(self, response: Any) -> list[dict[str, Any] | LanguageError]:
        """Return every call of a reply in order, each parsed or with the fault that it has.

        A language without several calls in one reply has one item. Raises LanguageError for a reply without a call.
        """
        return [self.parse_response(response)]

    def action_span(self, text: str) -> tuple[int, int] | None:
        """Return where the action begins and ends in a text reply that can be parsed, or None if that is not known.

        A language that parses replies in its own way overrides this, too.
        """
        if type(self).parse_response is not AgentLanguage.parse_response:
            return None
        used = _USE.search(text)
        return span_of_invocation(text) or (used and used.span())

    def thought_of(self, response: Any) -> str:
        """Return the reply's thought: the text outside its action, or the whole text if it is not known where the action is."""
        try:
            reply = reply_of(response)
            span = None if reply.tool_calls else self.action_span(reply.text)
        except LanguageError:
            return text_of_reply(response)
        before, after = (reply.text, "") if span is None else (reply.text[: span[0]], reply.text[span[1] :])
        return "\n\n".join(part for part in (before.strip(), after.strip()) if part)


def reply_of(response: Any) -> Response:
    """Return the reply as a Response. Raises LanguageError for a value that is not a reply, or a refusal without an answer."""
    try:
        reply = Response.of(response)
    except TypeError as error:
        raise LanguageError(str(error), "Reply with text or with a call of a tool.") from error
    if reply.refusal and not reply.tool_calls and not reply.text.strip():
        raise LanguageError(
            f"The reply is a refusal: {reply.refusal[:500]}", "Try another way to reach the goal, or end the run."
        )
    return reply


def goals_text(goals: Iterable[Goal]) -> str:
    """Return the goals in order, each with its name, then the examples."""
    ordered = in_order(goals)
    parts = [("# Goals", [g for g in ordered if not g.is_example]), (EXAMPLES, [g for g in ordered if g.is_example])]
    texts = ["\n\n".join([head, *(f"## {g.name}\n{g.description.strip()}" for g in of)]) for head, of in parts if of]
    return "\n\n".join(texts)


def actions_text(actions: Iterable[Action]) -> str:
    """Return the actions by name, with description and schema."""
    blocks = [
        f"## {a.name}\n{a.description.strip()}\n"
        f"Arguments: {json.dumps(a.spec()['parameters'], ensure_ascii=False, sort_keys=True)}"
        for a in sorted(actions, key=lambda a: a.name)
    ]
    return "\n\n".join(["# Tools", *blocks]) if blocks else ""


def environment_text(environment: Environment) -> str:
    """Return what the environment and the layers of the run say now; "" if they say nothing."""
    describe = getattr(environment, "describe", None)
    sections = {**(describe() if callable(describe) else {}), **current_sections()}
    return "\n\n".join(f"## {name}\n{text}" for name, text in sections.items() if text)


def prompt_of(
    system: str,
    turns: Sequence[dict[str, Any]],
    environment: Environment,
    goals: Iterable[Goal],
    actions: Iterable[Action],
    tools: Iterable[dict[str, Any]] = (),
) -> Prompt:
    """Return the prompt. The state of the environment comes last and only here, so that providers can cache what precedes it."""
    messages = [{"role": "system", "content": system}] if system else []
    messages += turns
    stable = len(messages)
    state = environment_text(environment)
    if state:
        messages.append({"role": "user", "content": f"# Environment now\n\n{state}"})
    ordered = sorted(actions, key=lambda a: a.name)
    metadata = {"goals": in_order(goals), "actions": [a.spec() for a in ordered]}
    return Prompt(tuple(messages), tuple(tools), metadata, stable_messages=stable)
