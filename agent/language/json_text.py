"""The language of JSON in text, for models without function calling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent.core.actions import Action
from agent.core.goals import Goal
from agent.core.status import LanguageError
from agent.memory import Memory
from agent.model.response import text_of_reply
from sandbox.environment.base import Environment

from .base import AgentLanguage, reply_of
from .decoding import find_invocation, invocation_of_calls, objects_in, span_of_invocation

FORM = 'Reply with one JSON object: {"tool": "NAME", "args": {...}}.'


class JsonLanguage(AgentLanguage):
    """A language of text; a reply is reasoning, then one JSON object with tool and args.

    A provider with structured output is held to that object, with the reasoning as its ``thought``.
    """

    def construct_prompt(
        self, actions: Sequence[Action], environment: Environment, goals: Sequence[Goal], memory: Memory
    ) -> Any:
        """See the base class; the prompt has the schema of a reply."""
        prompt = super().construct_prompt(actions, environment, goals, memory)
        return replace(prompt, response_format=reply_schema(actions))

    def thought_of(self, response: Any) -> str:
        """See the base class; the ``thought`` of the object, if there is no text beside it."""
        outside = super().thought_of(response)
        found = [] if outside else [o.get("thought") for o in objects_in(text_of_reply(response)) if "tool" in o]
        return next((thought.strip() for thought in found if isinstance(thought, str)), outside)

    def parse_response(self, response: Any) -> dict[str, Any]:
        """Return the first object with a tool, or a native call. Raises LanguageError."""
        reply = reply_of(response)
        if reply.tool_calls:
            return invocation_of_calls(reply).to_dict()
        found = find_invocation(reply.text, reply.cut)
        if found is None:
            what = "contains no JSON object with a tool" if reply.text.strip() else "is empty"
            raise LanguageError(f"The reply {what}.", FORM)
        return found.to_dict()

    def action_span(self, text: str) -> tuple[int, int] | None:
        return span_of_invocation(text)


def reply_schema(actions: Sequence[Action]) -> dict[str, Any]:
    """Return the JSON Schema of a reply: thought, the name of a tool, and its arguments, which each tool checks itself."""
    tool = {"type": "string", "enum": sorted(action.name for action in actions)}
    properties = {"thought": {"type": "string"}, "tool": tool, "args": {"type": "object"}}
    return {"type": "object", "properties": properties, "required": list(properties)}
