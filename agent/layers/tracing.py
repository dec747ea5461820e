"""OpenTelemetry spans of a run: the agent, each question to the model, each tool call.

Nothing of OpenTelemetry is imported until a ``Tracing`` is made.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from agent.core.budget import Usage, current_meter
from agent.core.loop.layers import Flow, Layer
from agent.core.loop.turns import Ask, Call
from agent.core.run import AgentRun, Step
from agent.core.status import RunStatus, StopRun
from agent.memory import Memory
from agent.model.response import Response
from agent.record import lineage
from sandbox.errors import ErrorCode, SandboxError

from . import genai

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind, TracerProvider

log = logging.getLogger(__name__)

# Of one attribute with content. An exporter sends up to 512 spans at once, and collectors refuse requests of some MB.
CONTENT_CHARS = 16_000
_DESCRIPTION_CHARS = 1000
_ID_CHARS = 256
# Ends that are not errors: the run did what it should, or somebody who may do so ended it.
_NO_ERROR = frozenset({RunStatus.finished, RunStatus.rejected, RunStatus.stopped, RunStatus.paused})
_CONVERSATION = "gamebox-conversation"


class Tracing(Layer):
    """Makes the spans ``invoke_agent``, ``chat`` and ``execute_tool`` of each run, with the GenAI names.

    They go to ``tracer_provider``, by default to the one that the program has set. One ``Tracing`` serves any number of agents
    and threads. Put it first among the layers, so that its spans include the work of all others. A run that begins
    within a tool call, such as that of a delegated agent, is a child of that call's span if its agent has a ``Tracing``, too.

    Prompts, replies, arguments and results are in the spans only with ``capture_content``, by default if the variable
    OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT says so. The secrets of the agent's environment are masked in
    them, and each attribute has at most ``max_content_chars`` characters.

    Raises SandboxError ``invalid_configuration`` if OpenTelemetry is not installed, and ValueError for fewer than 1,000
    ``max_content_chars``.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        agent_name: str = "",
        capture_content: bool | None = None,
        max_content_chars: int = CONTENT_CHARS,
    ) -> None:
        if max_content_chars < 1000:
            raise ValueError(f"max_content_chars must be at least 1000, got {max_content_chars}.")
        try:
            from opentelemetry import trace
        except ImportError as error:
            raise missing_extra() from error
        self.agent_name = agent_name
        self.capture_content = genai.is_capturing(os.environ) if capture_content is None else capture_content
        self.max_content_chars = max_content_chars
        self.tracer = trace.get_tracer("gamebox", version("gamebox"), tracer_provider)

    def for_run(self, agent: Any) -> Layer:
        """Return the layer that makes the spans of one run."""
        return _RunSpans(self, agent)


def missing_extra() -> SandboxError:
    """Return the error for a trace that is asked for without OpenTelemetry."""
    return SandboxError(
        ErrorCode.invalid_configuration,
        "Traces need OpenTelemetry, which is not installed.",
        "Install it: pip install 'gamebox[otel]'.",
    )


class _RunSpans(Layer):
    """The spans of one run. That of the agent is made with the first step, or at the end of a run without steps."""

    def __init__(self, tracing: Tracing, agent: Any) -> None:
        from opentelemetry import context, trace

        self._trace, self._context_api = trace, context
        self._tracer, self._most = tracing.tracer, tracing.max_content_chars
        self._captures = tracing.capture_content
        self._hidden = agent.environment.hidden
        self._meter = current_meter()
        self._around: Context = context.get_current()
        self._provider, self._model = genai.provider_and_model(_model_name(agent.generate_response))
        self._options = genai.request_options(getattr(agent.generate_response, "options", None))
        run = lineage.current()
        self._run_id = "" if run is None else run.run_id
        self._name = tracing.agent_name or ("" if run is None else run.agent)
        self._conversation = str(context.get_value(_CONVERSATION, self._around) or self._run_id)
        self._call_ids: tuple[str, ...] = ()
        self._span: Span | None = None
        self._within_run = self._around

    # --- the run ------------------------------------------------------------------
    def before_step(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        if self._span is None:
            span = self._begin()
            if self._captures:
                self._describe(span, lambda: self._task_in(memory))

    def after_run(self, run: AgentRun) -> None:
        span = self._begin() if self._span is None else self._span
        span.set_attributes(
            {
                genai.RUN_STATUS: run.status.value,
                genai.RUN_STEPS: run.iterations,
                **genai.usage_attributes(run.usage),
            }
        )
        if run.status not in _NO_ERROR:
            code = getattr(getattr(run.error, "code", None), "value", "")
            self._fail(span, code or run.status.value, run.reason)
        if self._captures and run.result is not None:
            self._describe(
                span,
                lambda: {genai.OUTPUT_MESSAGES: genai.text_message("assistant", run.result, self._masked, self._most)},
            )
        span.end()

    def _task_in(self, memory: Memory) -> dict[str, Any]:
        texts = [message.get("content") for message in memory.items if message.get("role") == "user"]
        return {genai.INPUT_MESSAGES: genai.text_message("user", texts[-1], self._masked, self._most)} if texts else {}

    def _begin(self) -> Span:
        kind = self._trace.SpanKind.INTERNAL
        attributes = {genai.AGENT_NAME: self._name, genai.RUN_ID: self._run_id, **self._of_model()}
        self._span = self._start(genai.INVOKE_AGENT, self._name, kind, attributes, self._around)
        self._within_run = self._trace.set_span_in_context(self._span, self._around)
        return self._span

    # --- questions and calls ------------------------------------------------------------------
    def around_ask(self, ask: Ask) -> Flow:
        attributes = {**self._of_model(), **self._options}
        span = self._start(genai.CHAT, self._model, self._trace.SpanKind.CLIENT, attributes, self._within_run)
        before = self._used()
        try:
            if self._captures:
                self._describe(span, lambda: genai.prompt_attributes(ask.prompt, self._masked, self._most))
            reply = yield replace(ask, within=(*ask.within, partial(self._current, span)))
            self._describe(span, lambda: self._of_reply(reply))
        except BaseException as error:
            self._note_error(span, error)
            raise
        else:
            return reply
        finally:
            span.set_attributes(genai.usage_attributes(_difference(self._used(), before)))
            span.end()

    def after_decision(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        if step.index == 0:  # also for a reply that comes from the log of a resumed run
            reply = _response_of(step.response)
            self._call_ids = () if reply is None else tuple(call.id for call in reply.tool_calls)

    def around_do(self, call: Call) -> Flow:
        name = call.tool or ""
        ident = self._call_ids[call.index] if call.index < len(self._call_ids) else ""
        attributes = {
            genai.TOOL_NAME: name,
            genai.TOOL_TYPE: "function",
            genai.TOOL_CALL_ID: self._hidden.mask.text(ident)[:_ID_CHARS],
            genai.TOOL_DESCRIPTION: str(getattr(call.action, "description", ""))[:_DESCRIPTION_CHARS],
        }
        span = self._start(genai.EXECUTE_TOOL, name, self._trace.SpanKind.INTERNAL, attributes, self._within_run)
        try:
            if self._captures:
                self._describe(span, lambda: {genai.TOOL_ARGUMENTS: self._data(call.args)})
            envelope = yield replace(call, within=(*call.within, partial(self._current, span)))
            self._describe(span, lambda: self._of_answer(envelope))
            if envelope.get("tool_executed") is not True:
                self._fail(span, str(envelope.get("code") or "_OTHER"), str(envelope.get("error") or ""))
        except BaseException as error:
            self._note_error(span, error)
            raise
        else:
            return envelope
        finally:
            span.end()

    # --- what spans say ------------------------------------------------------------------
    def _start(self, operation: str, name: str, kind: SpanKind, attributes: Mapping[str, Any], parent: Context) -> Span:
        said = {genai.OPERATION_NAME: operation, genai.CONVERSATION_ID: self._conversation, **attributes}
        said = {key: genai.clean(v) if isinstance(v, str) else v for key, v in said.items() if v != ""}
        return self._tracer.start_span(genai.clean(f"{operation} {name}".strip()), parent, kind, said)

    def _of_model(self) -> dict[str, str]:
        return {genai.PROVIDER_NAME: self._provider, genai.REQUEST_MODEL: self._model}

    def _describe(self, span: Span, attributes: Callable[[], Mapping[str, Any]]) -> None:
        """Add attributes that are computed from what a user's parts made; a fault in that must not end a run."""
        if span.is_recording():
            try:
                span.set_attributes(attributes())
            except Exception:
                log.warning("a span could not be described", exc_info=True)

    def _of_reply(self, value: Any) -> dict[str, Any]:
        reply = _response_of(value)
        if reply is None:
            return {}
        found: dict[str, Any] = {genai.FINISH_REASONS: (genai.finish_reason(reply),)}
        if reply.model:
            found[genai.RESPONSE_MODEL] = genai.clean(genai.provider_and_model(reply.model)[1])
        if self._captures:
            found[genai.OUTPUT_MESSAGES] = genai.reply_attribute(reply, self._masked, self._most)
        return found

    def _of_answer(self, envelope: Mapping[str, Any]) -> dict[str, Any]:
        result = envelope.get("result")
        exit_code = result.get("exit_code") if isinstance(result, Mapping) else None
        found = {genai.EXIT_CODE: exit_code} if isinstance(exit_code, int) else {}
        return {**found, genai.TOOL_RESULT: self._data(envelope)} if self._captures else found

    def _data(self, value: Any) -> str:
        return genai.data_attribute(value, self._masked, self._most)

    def _note_error(self, span: Span, error: BaseException) -> None:
        """A StopRun is a signal; that of a limit or a cancellation is an error of the run, not of this span."""
        if not isinstance(error, StopRun):
            code = getattr(getattr(error, "code", None), "value", "")
            self._fail(span, code or type(error).__name__, str(error))

    def _fail(self, span: Span, kind: str, message: str) -> None:
        """A message may quote a prompt or a file: it is content."""
        span.set_attribute(genai.ERROR_TYPE, genai.clean(kind)[:_ID_CHARS])
        text = genai.clean(self._hidden.mask.text(message)[:_DESCRIPTION_CHARS]) if self._captures else None
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, text))

    def _masked(self, value: Any) -> Any:
        return self._hidden.data(value)

    def _used(self) -> Usage:
        return Usage() if self._meter is None else self._meter.usage

    @contextmanager
    def _current(self, span: Span) -> Iterator[None]:
        """Have ``span`` be the parent of what begins while the block runs."""
        context = self._trace.set_span_in_context(span, self._within_run)
        if self._conversation:
            context = self._context_api.set_value(_CONVERSATION, self._conversation, context)
        token = self._context_api.attach(context)
        try:
            yield
        finally:
            self._context_api.detach(token)


def _model_name(brain: object) -> str:
    """The name of the model that a brain asks, also within a brain that records or replays; "" if it has none."""
    for _ in range(5):
        name = getattr(brain, "model", None)
        if isinstance(name, str):
            return name
        brain = getattr(brain, "brain", None)
    return ""


def _response_of(reply: Any) -> Response | None:
    try:
        return Response.of(reply)
    except TypeError:
        return None


def _difference(now: Usage, before: Usage) -> Usage:
    return Usage(**{f.name: getattr(now, f.name) - getattr(before, f.name) for f in fields(Usage)})
