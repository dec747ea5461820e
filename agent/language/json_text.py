"""The language of JSON in text, for models without function calling."""

from __future__ import annotations

from typing import Any

from agent.status import LanguageError

from .base import AgentLanguage, reply_of
from .decoding import find_invocation, invocation_of_calls, span_of_invocation

FORM = 'Reply with one JSON object: {"tool": "NAME", "args": {...}}.'


class JsonLanguage(AgentLanguage):
    """Everything is text; a reply is reasoning, then one JSON object with tool and args."""

    def parse_response(self, response: Any) -> dict[str, Any]:
        """The first object with a tool; a native call is taken as well. Raises LanguageError."""
        reply = reply_of(response)
        if reply.tool_calls:
            return invocation_of_calls(reply).to_dict()
        found = find_invocation(reply.text, reply.cut)
        if found is None:
            what = "holds no JSON object with a tool" if reply.text.strip() else "is empty"
            raise LanguageError(f"The reply {what}.", FORM)
        return found.to_dict()

    def action_span(self, text: str) -> tuple[int, int] | None:
        """See the base class."""
        return span_of_invocation(text)
