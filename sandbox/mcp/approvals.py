"""Ask the user of a client before a call: by elicitation, in the form that the client's protocol has for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from sandbox.envelope import Failure
from sandbox.errors import ErrorCode
from sandbox.text.excerpt import without_middle
from sandbox.text.invisible import visible

from .session import Session
from .tools import Tool

KEY = "approval"
MOST_CHARS = 2000
USER_SECONDS = 600.0
Context = ServerRequestContext[Any, Any]


async def approval(
    session: Session, ctx: Context, tool: Tool, params: CallToolRequestParams
) -> Failure[Any] | InputRequiredResult | None:
    """Return None if the call may be carried out; else why not, or what the client has to ask its user first."""
    if not session.asks or not tool.changes or tool.name in session.approved:
        return None
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.elicitation is None:
        return _refused(
            f"{tool.name} needs an approval, and this client cannot ask its user for one.",
            "Tell the user: the server was started to ask before changes. They can use a client with elicitation, or no --ask.",
        )
    asked = _form(tool, params.arguments or {})
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        answer = (params.input_responses or {}).get(KEY)
        if answer is None:
            return InputRequiredResult(input_requests={KEY: ElicitRequest(params=asked)})
    else:
        try:
            with anyio.fail_after(USER_SECONDS):
                answer = await ctx.session.elicit_form(asked.message, asked.requested_schema, ctx.request_id)
        except (MCPError, TimeoutError, ValidationError):
            answer = None
    if not isinstance(answer, ElicitResult) or answer.action != "accept":
        return _refused(
            f"{tool.name} needs an approval and did not get one.",
            "Do without this action, or explain to the user why it is needed.",
        )
    if (answer.content or {}).get("always") is True:
        session.approved.add(tool.name)
    return None


def _form(tool: Tool, args: Mapping[str, Any]) -> ElicitRequestFormParams:
    shown = [
        f"{name}: {visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=True))}"
        for name, value in args.items()
    ]
    message = without_middle("\n".join([f"May {tool.name} be carried out in the sandbox?", *shown]), MOST_CHARS)
    always = {"type": "boolean", "title": f"Do not ask again for {tool.name} in this session", "default": False}
    return ElicitRequestFormParams(
        message=message, requested_schema={"type": "object", "properties": {"always": always}, "required": []}
    )


def _refused(message: str, hint: str) -> Failure[Any]:
    return Failure(ErrorCode.approval_refused, message, hint)
