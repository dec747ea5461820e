"""Records the replies of a brain, and replays them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter

from agent.core.run import AgentRun
from sandbox.envelope import jsonable
from sandbox.errors import ErrorCode, SandboxError

from .brain import Brain
from .response import Response
from .scripted import ScriptedModel

# How the log shows a secret.
_MASK = re.compile(r"\*\*\*[A-Za-z_]\w*\*\*\*")


class RecordingModel:
    """A brain around another one that appends each reply to a file, one JSON line each."""

    def __init__(self, brain: Brain, path: str | Path) -> None:
        self.brain = brain
        self.path = Path(path)

    def __call__(self, prompt: Any, /) -> Any:
        reply = self.brain(prompt)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(stored(reply), ensure_ascii=False) + "\n")
        return reply


class ReplayModel(ScriptedModel):
    """Repeats recorded replies in order; calls no model."""

    @classmethod
    def of_run(cls, run: AgentRun) -> Self:
        """Make a model of the replies of a run."""
        return cls(s.response for s in run.steps if s.response is not None)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Make a model of the replies that a RecordingModel wrote. Raises SandboxError ``invalid_configuration``."""
        try:
            lines: Iterable[str] = Path(path).read_text(encoding="utf-8").splitlines()
            return cls(restored(json.loads(line)) for line in lines if line.strip())
        except (OSError, ValueError) as error:
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"The recording {path} cannot be read: {error}.",
                "Record one with RecordingModel(brain, path).",
            ) from error


def stored(reply: Any) -> dict[str, Any]:
    """Return a reply as JSON-ready data, for ``restored``; a value that is not a reply is kept as text."""
    if isinstance(reply, str) or (isinstance(reply, dict) and "tool" in reply):
        return {"reply": jsonable(reply)}
    try:
        response = asdict(Response.of(reply))
    except TypeError:
        return {"reply": jsonable(reply)}
    calls = [_without_empty(call) for call in response.pop("tool_calls")]
    return {"response": {**_without_empty(response), "tool_calls": calls}}


def _without_empty(data: dict[str, Any]) -> dict[str, Any]:
    """Leave out what only some providers send, so that a log does not repeat empty fields at each step."""
    return {k: v for k, v in data.items() if v or k not in {"extra", "refusal", "model"}}


def restored(data: Any) -> Any:
    """Return the reply again; logs of earlier releases lack the later fields. Raises ValueError for invalid data."""
    if not isinstance(data, dict) or not data.keys() & {"reply", "response"}:
        raise ValueError(f"{data!r:.200} is not a recorded reply")
    if "reply" in data:
        return data["reply"]
    reply = _responses().validate_python(data["response"])
    return replace(reply, extra=_without_masked(dict(reply.extra)))


@cache
def _responses() -> TypeAdapter[Response]:
    return TypeAdapter(Response)


def _without_masked(extra: dict[str, Any]) -> dict[str, Any]:
    """Leave out thinking in which the log has masked a secret: it no longer fits its signature, and would be refused."""
    blocks = extra.get("thinking_blocks", ())
    masked = any(_MASK.search(str(b.get("thinking", ""))) for b in blocks if isinstance(b, dict) and b.get("signature"))
    return {k: v for k, v in extra.items() if k != "thinking_blocks"} if masked else extra
