"""The model handle that old agents expect: ``llm.completion(messages=...)`` answers as litellm does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent.core.prompt import Prompt
from agent.model.brain import Brain
from agent.model.response import Response
from sandbox.errors import ErrorCode, SandboxError


class Answer(dict[str, Any]):
    """A mapping whose keys are also attributes, as in the objects of model clients."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]


class LLM:
    """The run's brain as a model. The brain itself counts its usage on the run."""

    def __init__(self, brain: Brain | None = None, max_input_tokens: int = 4096, max_output_tokens: int = 1024) -> None:
        self.brain = brain
        self.max_input_tokens = max_input_tokens
        self.max_output_tokens = max_output_tokens

    def completion(
        self, messages: Sequence[Mapping[str, Any]], *, stop: str | Sequence[str] | None = None, **options: Any
    ) -> Answer:
        """Return the reply as ``["choices"][0]["message"]["content"]``, also by attributes, cut at the first of
        ``stop``.

        ``tools`` go to the brain; ``temperature`` and the like are options of the brain and have no effect here.
        Raises what the brain raises, and SandboxError ``invalid_configuration`` if there is no brain.
        """
        if self.brain is None:
            raise SandboxError(
                ErrorCode.invalid_configuration,
                "The agent needs a model, and none was named.",
                "Give it a brain: --model provider/name, or --script FILE.json.",
            )
        reply = Response.of(self.brain(Prompt(tuple(dict(m) for m in messages), tuple(options.get("tools") or ()))))
        text = _until(reply.text, [stop] if isinstance(stop, str) else list(stop or ()))
        message = Answer(role="assistant", content=text)
        if reply.tool_calls:
            message["tool_calls"] = [
                Answer(id=c.id, type="function", function=Answer(name=c.name, arguments=c.arguments))
                for c in reply.tool_calls
            ]
        return Answer(choices=[Answer(index=0, message=message, finish_reason="length" if reply.cut else "stop")])

    do_completion = completion

    def get_token_count(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Estimate the tokens of messages: one for four characters."""
        return sum(len(json.dumps(dict(m), ensure_ascii=False, default=str)) for m in messages) // 4

    def completion_cost(self, _response: Any) -> float:
        """Return 0: the cost of calls is counted on the run."""
        return 0.0


def _until(text: str, stops: Sequence[str]) -> str:
    """Return ``text`` up to the first of ``stops``."""
    return text[: min((text.find(s) for s in stops if s and s in text), default=len(text))]
