"""A language model through litellm, which is imported here and only when a model is used (it takes seconds)."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

from agent.budget import Usage, charge, current_meter
from agent.errors import AgentErrorCode
from agent.prompt import Prompt
from sandbox.errors import ErrorCode
from sandbox.interrupts import reraise_interrupts

from .brain import ModelError
from .faults import is_transient, translated, wait_seconds
from .response import Response
from .switch import refuse_if_forbidden

log = logging.getLogger(__name__)

# Rough, for calls that failed without saying what they used: English text has about 4 characters a token.
CHARS_PER_TOKEN = 4
# Retries are ours: litellm's own would escape budget and count. Without the last option litellm 1.106 imports its tool
# gateway for any call with tools, and with it the package mcp, which it does not depend on.
CALL_OPTIONS = {"num_retries": 0, "max_retries": 0, "_skip_mcp_handler": True}


class LiteLLMModel:
    """A brain that calls ``model`` (in litellm's form, ``provider/name``).

    Calls that fail with a transient error (429, 5xx, connection, timeout) are tried up to ``max_attempts`` times, with a
    growing pause of at most ``max_wait_seconds`` that honours the provider's retry-after. Every attempt is charged to the run
    around it and checked against its budget first. ``options`` go to litellm as they are (temperature, max_tokens, api_base,
    api_key, ...).

    Raises ModelError: ``model_credentials_missing``, ``model_rejected_request``, ``context_window_exceeded``,
    ``model_unavailable`` or ``real_calls_forbidden``.
    """

    def __init__(
        self,
        model: str,
        *,
        timeout_seconds: float = 300.0,
        max_attempts: int = 6,
        max_wait_seconds: float = 60.0,
        **options: Any,
    ) -> None:
        if not model or not isinstance(model, str):
            raise ModelError(
                ErrorCode.invalid_configuration, f"{model!r} is no name of a model.", "Give it as provider/name."
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
        # An address that is missing is not said: local servers have a usual one.
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
        request = request_of(prompt)
        meter = current_meter()
        retrying = Retrying(
            stop=stop_after_attempt(self.max_attempts),
            wait=self._pause,
            retry=retry_if_exception(is_transient),
            before=lambda _: meter.check() if meter else None,
            before_sleep=self._say_pause,
            reraise=True,
        )
        try:
            return retrying(self._attempt, request)
        except ModelError:
            raise
        except Exception as error:
            known = translated(error, self.model)
            if known is None:
                raise
            raise known from error

    @reraise_interrupts()
    def _attempt(self, request: Mapping[str, Any]) -> Response:
        litellm = load()
        try:
            raw = litellm.completion(
                model=self.model, timeout=self._seconds(), **CALL_OPTIONS, **request, **self.options
            )
        except Exception as error:
            billed = isinstance(error, litellm.exceptions.Timeout)
            tokens = len(json.dumps(request, default=repr)) // CHARS_PER_TOKEN if billed else 0
            charge(Usage(calls=1, failed_calls=1, estimated_tokens=tokens))
            raise
        charge(self._usage(raw))
        if not getattr(raw, "choices", None):
            raise ModelError(AgentErrorCode.model_unavailable, f"{self.model} answered without a reply.", "Try again.")
        return Response.of(raw)

    def _seconds(self) -> float:
        meter = current_meter()
        left = meter.seconds_left() if meter else None
        # At least a second: check() has just seen time left, and a timeout of nearly 0 would only look like a fault.
        return self.timeout_seconds if left is None else max(min(self.timeout_seconds, left), 1.0)

    def _usage(self, raw: Any) -> Usage:
        usage = getattr(raw, "usage", None)
        cost = self._cost(raw)
        return Usage(
            calls=1,
            input_tokens=int(getattr(usage, "prompt_tokens", 0) or 0),
            output_tokens=int(getattr(usage, "completion_tokens", 0) or 0),
            cost_usd=cost or 0.0,
            unpriced_calls=0 if cost is not None else 1,
        )

    def _cost(self, raw: Any) -> float | None:
        hidden = getattr(raw, "_hidden_params", None) or {}
        cost = hidden.get("response_cost")
        return float(cost) if isinstance(cost, int | float) and (cost > 0 or self.is_priced()) else None

    def _pause(self, state: RetryCallState) -> float:
        outcome = state.outcome
        error = outcome.exception() if outcome else None
        pause = wait_seconds(error, state.attempt_number, self.max_wait_seconds)
        meter = current_meter()
        left = meter.seconds_left() if meter else None
        return pause if left is None else min(pause, left)

    def _say_pause(self, state: RetryCallState) -> None:
        """A model that is waited for looks like one that hangs: said as a warning, which Python shows on standard error."""
        error = state.outcome.exception() if state.outcome else None
        log.warning(
            "%s: %s; trying again in %.0f s (attempt %d of %d)",
            self.model, type(error).__name__, state.upcoming_sleep, state.attempt_number + 1, self.max_attempts,
        )  # fmt: skip


_loading = threading.Lock()


def load() -> Any:
    """litellm, quiet and without its own look-ups: it would fetch its price list from the network while being
    imported. Safe in several threads: its modules import each other in circles, which two threads at once may leave half done.
    What it warns of itself raises nothing, even where all warnings are errors. Raises ModelError ``setup_failed`` if it cannot be
    imported.
    """
    with _loading:
        return _loaded()


def _loaded() -> Any:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm
    except ImportError as error:
        raise ModelError(
            ErrorCode.setup_failed,
            f"Models are called through the package litellm, which cannot be imported here: {error}.",
            f"Run: {sys.executable} -m pip install litellm. Sandboxes work without it.",
        ) from error

    litellm.suppress_debug_info = True
    litellm.drop_params = True
    litellm.telemetry = False
    if litellm.client_session is None:
        import httpx
        from litellm.llms.custom_httpx.http_handler import get_ssl_configuration

        from .parts import JoiningTransport

        _build_answers(litellm)
        litellm.client_session = httpx.Client(
            transport=JoiningTransport(verify=get_ssl_configuration()), follow_redirects=True
        )
    return litellm


@contextmanager
def _without_empty_keys() -> Iterator[None]:
    """Take keys that are set and empty out of the environment in the block: litellm looks only whether they are set."""
    empty = [name for name, value in os.environ.items() if name.endswith("_API_KEY") and not value]
    for name in empty:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        os.environ.update(dict.fromkeys(empty, ""))


def _build_answers(litellm: Any) -> None:
    """Have the classes of its answers built now. That warns, and litellm silences it by a filter that it adds while it is imported:
    where that was undone since (pytest does so after each test) and warnings are errors, every call would fail at its answer.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        litellm.ModelResponse(choices=None, usage={})


def request_of(prompt: Any) -> dict[str, Any]:
    """The messages and tools of a prompt: a Prompt, a mapping with messages, or anything else as text of the user."""
    if isinstance(prompt, Prompt):
        prompt = prompt.to_dict()
    if isinstance(prompt, Mapping) and "messages" in prompt:
        request = {"messages": list(prompt["messages"])}
        return {**request, "tools": list(prompt["tools"])} if prompt.get("tools") else request
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False, default=repr)
    return {"messages": [{"role": "user", "content": text}]}
