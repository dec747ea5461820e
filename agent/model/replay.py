"""Recording what a brain replied, and replaying it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from agent.run import AgentRun
from sandbox.envelope import jsonable
from sandbox.errors import ErrorCode, SandboxError

from .brain import Brain
from .response import Response, ToolCall
from .scripted import ScriptedModel


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
    """Gives the recorded replies again, in order; calls no model."""

    @classmethod
    def of_run(cls, run: AgentRun) -> Self:
        """The replies of a run."""
        return cls(s.response for s in run.steps if s.response is not None)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """The replies that a RecordingModel wrote. Raises SandboxError ``invalid_configuration``."""
        try:
            lines: Iterable[str] = Path(path).read_text(encoding="utf-8").splitlines()
            return cls(restored(json.loads(line)) for line in lines if line.strip())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"The recording {path} cannot be read: {error}.",
                "Record one with RecordingModel(brain, path).",
            ) from error


def stored(reply: Any) -> dict[str, Any]:
    """A reply as JSON-ready data, for ``restored``; what is no reply at all is kept as text."""
    if isinstance(reply, str) or (isinstance(reply, dict) and "tool" in reply):
        return {"reply": jsonable(reply)}
    try:
        return {"response": asdict(Response.of(reply))}
    except TypeError:
        return {"reply": jsonable(reply)}


def restored(data: dict[str, Any]) -> Any:
    """The reply again. Raises KeyError and TypeError for what is none."""
    if "reply" in data:
        return data["reply"]
    stored = data["response"]
    return Response(stored["text"], tuple(ToolCall(**c) for c in stored["tool_calls"]), stored["cut"])
