"""A language model through litellm."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from agent.core.budget import Usage, charge, current_meter
from agent.errors import AgentErrorCode
from sandbox.errors import ErrorCode
from sandbox.interrupts import reraise_interrupts

from .attempts import attempts
from .brain import ModelError, delta_listener
from .deadline import within
from .litellm_import import load
from .request import Abilities, has_thinking_gap, request_of
from .response import Response
from .streaming import MAX_REPLY_CHARS, collected, endless
from .switch import refuse_if_forbidden

# Rough, for calls that failed without saying what they used: English text has about 4 characters per token.
CHARS_PER_TOKEN = 4
# Retries are ours: litellm's own would escape budget and count. Without the last option litellm 1.106 imports its tool
# gateway for any call with tools, and with it the package mcp, which it does not depend on.
CALL_OPTIONS = {"num_retries": 0, "max_retries": 0, "_skip_mcp_handler": True}
# Options that ask a model to think.
THINKING = frozenset({"thinking", "reasoning_effort"})


class LiteLLMModel:
    """A brain that calls ``model`` (in litellm's form, ``provider/name``).

    Transient faults (429, 5xx, connection, timeout) are tried up to ``max_attempts`` times. The pause between two grows to 60 s, or
    is what the provider's Retry-After says; it is never longer than ``max_wait_seconds``. After a 429 every caller of the same
    model in this process waits. Every attempt is charged to the run around it and checked against its budget first. ``options``
    go to litellm unchanged (temperature, reasoning_effort, max_tokens, api_base, api_key, ...).

    Within ``receiving_deltas`` the reply is streamed. A model without vision gets a description instead of an image.
    ``cache_markers`` mark the beginning of the prompt that stays the same; by default where the provider needs that, as for Claude.

    Raises ModelError: ``model_credentials_missing``, ``model_rejected_request``, ``context_window_exceeded``,
    ``model_unavailable`` or ``real_calls_forbidden``.
    """

    def __init__(
        self,
        model: str,
        *,
        timeout_seconds: float = 300.0,
        max_attempts: int = 6,
        max_wait_seconds: float = 600.0,
        cache_markers: bool | None = None,
        **options: Any,
    ) -> None:
        if not model or not isinstance(model, str):
            raise ModelError(
                ErrorCode.invalid_configuration, f"{model!r} is not the name of a model.", "Give it as provider/name."
            )
        if timeout_seconds <= 0 or max_attempts < 1 or max_wait_seconds < 0:
            raise ModelError(
                ErrorCode.invalid_configuration,
                f"timeout_seconds={timeout_seconds}, max_attempts={max_attempts}, max_wait_seconds={max_wait_seconds} "
                "are not all positive.",
                "Give positive numbers.",
            )
        self.model = model
        self.timeout_seconds = timeout_seconds
        self.max_attempts = max_attempts
        self.max_wait_seconds = max_wait_seconds
        self.cache_markers = cache_markers
        self.options = options

    def check(self) -> None:
        """Raise ModelError if the model's provider is not known or its key is not set; calls no model."""
        refuse_if_forbidden(self.model)
        litellm = load()
        try:
            _, provider, _, _ = litellm.get_llm_provider(self.model, api_base=self.options.get("api_base"))
        except Exception as error:
            raise ModelError(
                ErrorCode.invalid_configuration,
                f"No provider is known for the model {self.model!r}.",
                "Write it as provider/name, for example openai/gpt-4.1 or anthropic/claude-sonnet-4-5.",
            ) from error
        if self.options.get("api_key"):
            return
        with _without_empty_keys():
            found = litellm.validate_environment(self.model)
        # A missing address is not reported: local servers have a usual one.
        missing = [str(k) for k in found.get("missing_keys", ()) if not str(k).endswith("_API_BASE")]
        if not found.get("keys_in_environment") and missing:
            raise ModelError(
                AgentErrorCode.model_credentials_missing,
                f"The model {self.model} needs a key: {' and '.join(missing)} not set.",
                f"Run: export {missing[0]}=... (a key of {provider}).",
            )

    def is_priced(self) -> bool:
        """Return whether the price of the model is known, so that a limit on cost can be enforced."""
        if self.options.get("input_cost_per_token") is not None:
            return True
        try:
            info = load().get_model_info(self.model)
        except Exception:  # noqa: BLE001 - litellm raises a bare Exception for a model it does not know
            return False
        return bool(info.get("input_cost_per_token"))

    def __call__(self, prompt: Any, /) -> Response:
        refuse_if_forbidden(self.model)
        request = request_of(prompt, self._abilities)
        return attempts(
            partial(self._ask, request),
            self.model,
            self.options,
            max_attempts=self.max_attempts,
            max_wait_seconds=self.max_wait_seconds,
        )

    @cached_property
    def _abilities(self) -> Abilities:
        able = Abilities.of(load(), self.model, self.options.get("api_base"))
        return able if self.cache_markers is None else replace(able, marked=self.cache_markers)

    @reraise_interrupts()
    def _ask(self, request: Mapping[str, Any]) -> Response:
        litellm = load()
        listener = delta_listener()
        asked = self._with_options(request)
        seconds = self._seconds()
        if listener is not None:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        raw: Any = None

        def call() -> Any:
            nonlocal raw
            raw = litellm.completion(model=self.model, timeout=seconds, **CALL_OPTIONS, **asked)
            return raw if listener is None else collected(litellm, raw, request["messages"], listener)

        try:
            late = litellm.exceptions.Timeout("The reply was still arriving at the timeout.", "", "")
            raw = within(seconds, late, call)
        except Exception as error:
            # A stream that broke off, like a reply that came too late, was begun and is usually billed.
            billed = raw is not None or isinstance(error, litellm.exceptions.Timeout)
            tokens = len(json.dumps(request, default=repr)) // CHARS_PER_TOKEN if billed else 0
            charge(Usage(calls=1, failed_calls=1, estimated_tokens=tokens))
            raise
        charge(self._usage(raw))
        if not getattr(raw, "choices", None):
            raise ModelError(AgentErrorCode.model_unavailable, f"{self.model} answered without a reply.", "Try again.")
        reply = replace(Response.of(raw), model=self.model)
        if len(reply.text) + sum(len(call.name) + len(call.arguments) for call in reply.tool_calls) > MAX_REPLY_CHARS:
            raise endless()
        return reply

    def _with_options(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The request with the options of the model.

        Claude refuses to think where its last decision with calls lacks the thinking, because another model wrote it: it is
        then asked without.
        """
        asked = THINKING & self.options.keys()
        if not asked or "claude" not in self.model.lower() or not has_thinking_gap(request["messages"]):
            return {**request, **self.options}
        messages = [{k: v for k, v in m.items() if k != "thinking_blocks"} for m in request["messages"]]
        return {**request, **{k: v for k, v in self.options.items() if k not in THINKING}, "messages": messages}

    def _seconds(self) -> float:
        meter = current_meter()
        left = meter.seconds_left() if meter else None
        # At least a second: check() has just seen time left, and a timeout of nearly 0 would only look like a fault.
        return self.timeout_seconds if left is None else max(min(self.timeout_seconds, left), 1.0)

    def _usage(self, raw: Any) -> Usage:
        usage = getattr(raw, "usage", None)
        read, thought = getattr(usage, "prompt_tokens_details", None), getattr(usage, "completion_tokens_details", None)
        cost = self._cost(raw)
        return Usage(
            calls=1,
            input_tokens=_count(usage, "prompt_tokens"),
            output_tokens=_count(usage, "completion_tokens"),
            cost_usd=cost or 0.0,
            unpriced_calls=0 if cost is not None else 1,
            cached_tokens=_count(read, "cached_tokens"),
            cache_write_tokens=_count(usage, "cache_creation_input_tokens") or _count(read, "cache_creation_tokens"),
            reasoning_tokens=_count(thought, "reasoning_tokens"),
        )

    def _cost(self, raw: Any) -> float | None:
        hidden = getattr(raw, "_hidden_params", None) or {}
        cost = hidden.get("response_cost")
        if not isinstance(cost, int | float):
            cost = self._computed_cost(raw)
        return float(cost) if isinstance(cost, int | float) and (cost > 0 or self.is_priced()) else None

    def _computed_cost(self, raw: Any) -> Any:
        """The cost of a streamed reply, which litellm prices only when it is asked."""
        given = {key: self.options.get(key) for key in ("input_cost_per_token", "output_cost_per_token")}
        prices = {"custom_cost_per_token": given} if None not in given.values() else {}
        try:
            return load().completion_cost(completion_response=raw, model=self.model, **prices)
        except Exception:  # noqa: BLE001 - litellm raises a bare Exception for a model without a price
            return None


def _count(usage: Any, name: str) -> int:
    value = getattr(usage, name, None)
    return value if isinstance(value, int) and value > 0 else 0


@contextmanager
def _without_empty_keys() -> Iterator[None]:
    """Remove empty keys from the environment while the block runs: litellm only checks whether they are set."""
    empty = [name for name, value in os.environ.items() if name.endswith("_API_KEY") and not value]
    for name in empty:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        os.environ.update(dict.fromkeys(empty, ""))
