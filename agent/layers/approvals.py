"""Approvals: which calls somebody must approve, the possible answers, and the layer that asks before a call is carried out.

A pending approval is an event of the run: it survives a restart, and the call is carried out once, after it was approved.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import field, replace
from functools import partial
from typing import Any, Literal, TypeAlias

from agent.core.envelopes import invalid_arguments
from agent.core.environment_wrapper import LayeredEnvironment
from agent.core.loop.layers import Flow, Layer
from agent.core.loop.turns import Call
from agent.core.registry import ActionRegistry
from agent.core.status import RunStatus, StopRun
from agent.errors import AgentErrorCode
from agent.record import events as ev
from agent.record.recorder import Recorder
from sandbox.envelope import Failure, jsonable
from sandbox.environment.base import ActionLike, Environment, approving
from sandbox.errors import ErrorCode
from sandbox.frozen import dataclass

from .risk import Analyzer, Rating, Risk, by_pattern, rating_of

log = logging.getLogger(__name__)

Rule: TypeAlias = "Literal['never', 'risky', 'always'] | Callable[[str, Mapping[str, Any], Rating], bool]"
Verdict = Literal["approve", "edit", "reject", "later"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalPolicy:
    """Decide which calls need an approval: by the rule in ``tools`` for the tools that it names, by ``default`` for all others.

    A rule is never, always, risky (from ``threshold`` on; unknown is above medium), or a callable (tool, args, rating) that
    returns whether to ask; if it raises, the call needs an approval. ``analyzers`` judge the risk.
    """

    default: Rule = "never"
    tools: Mapping[str, Rule] = field(default_factory=dict)
    threshold: Risk = Risk.high
    analyzers: Sequence[Analyzer] = (by_pattern,)

    def rated(self, action: ActionLike, args: Mapping[str, Any]) -> Rating:
        """Return the risk of a call."""
        return rating_of(action, args, self.analyzers)

    def needs(self, action: ActionLike, args: Mapping[str, Any], rating: Rating) -> bool:
        """Return whether the call needs an approval."""
        rule = self.tools.get(action.name, self.default)
        if callable(rule):
            try:
                return bool(rule(action.name, args, rating))
            except Exception:
                log.warning("the approval policy failed on %s", action.name, exc_info=True)
                return True
        return rule == "always" or (rule == "risky" and rating.risk >= self.threshold)


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A call that somebody is asked to approve."""

    tool: str
    args: Mapping[str, Any]
    rating: Rating
    problem: str = ""  # what was wrong with the arguments that were given in the last answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a request. With edit, ``args`` are carried out instead; with reject, the model gets ``reason``.
    ``for_session`` also approves later calls of that tool whose risk is not higher. ``later`` pauses the run; the question is
    asked again when the run is resumed.
    """

    verdict: Verdict
    args: Mapping[str, Any] | None = None
    reason: str = ""
    for_session: bool = False


Ask = Callable[[ApprovalRequest], Answer]


class Approvals(Layer):
    """A layer that carries out only calls that need no approval, or have one. It stands outside of the record.

    Without ``ask`` a call that needs an approval is rejected. An action whose metadata says ``requires_approval`` needs one under
    every policy: of the ``approver`` of the environment if that has one, otherwise of ``ask``. ``registry`` checks edits.
    """

    outside_record = True

    def __init__(
        self,
        policy: ApprovalPolicy,
        ask: Ask | None = None,
        *,
        environment: Environment,
        registry: ActionRegistry | None = None,
    ) -> None:
        self.policy, self.ask = policy, ask
        self._environment = environment
        self._registry = registry or ActionRegistry()
        self._recorder: Recorder | None = None
        self._session: dict[str, Risk] = {}

    def recorded_by(self, recorder: Recorder) -> Approvals:
        """Return a copy that records requests and answers. Both share the approvals for the session."""
        recorded = copy(self)
        recorded._recorder = recorder  # noqa: SLF001 - a copy of this object
        for answer in recorder.resumed.approved if recorder.resumed is not None else ():
            self._allow(answer.tool, Risk.__members__.get(answer.risk, Risk.low))
        return recorded

    def around_do(self, call: Call) -> Flow:
        """Ask before the call, if it needs an approval."""
        recorder = self._recorder
        before = None if recorder is None else recorder.call_before(call.index)
        if call.action is None or (recorder is not None and recorder.is_stopping):
            return (yield call)
        if before is not None and before.answered is not None:
            return (yield from self._settled(call, _answer_of(before.answered)))
        if before is not None and before.started is not None:
            return (yield _approved(call))  # it needed none then
        rating = self.policy.rated(call.action, call.args)
        # The approver of the environment is asked by the environment.
        metadata = getattr(call.action, "metadata", None) or {}
        required = (
            self._environment.approver is None and self.ask is not None and bool(metadata.get("requires_approval"))
        )
        if not required and not self.policy.needs(call.action, call.args, rating):
            return (yield call)
        if self._session.get(call.action.name, Risk(1) - 1) >= rating.risk:
            return (yield _approved(call))
        return (yield from self._decided(call, rating, asked=before is not None and before.requested is not None))

    def _decided(self, call: Call, rating: Rating, *, asked: bool) -> Flow:
        step = 0 if self._recorder is None else self._recorder.step
        tool = call.name
        if self.ask is None:
            return _rejected(tool, "nobody is there to approve it.", rating)
        try:
            if not asked:
                self._note(
                    ev.ApprovalRequested(
                        step=step, tool=tool, args=jsonable(call.args), risk=rating.risk.name, reasons=rating.reasons,
                        index=call.index,
                    )
                )  # fmt: skip
            answer = self._asked(call, rating)
            if answer.verdict == "later":
                return self._postpone(tool)
            self._note(
                ev.ApprovalAnswered(
                    step=step, tool=tool, verdict=answer.verdict, risk=rating.risk.name, args=jsonable(answer.args),
                    reason=answer.reason, for_session=answer.for_session, index=call.index,
                )
            )  # fmt: skip
        except StopRun as stop:  # it could not be recorded; the recorder ends the run
            return Failure[Any](
                AgentErrorCode.log_unusable, stop.reason, "Repair the log, then resume the run."
            ).to_dict()
        if answer.for_session and answer.verdict != "reject":
            self._allow(tool, rating.risk)
        return (yield from self._settled(call, answer, rating))

    def _asked(self, call: Call, rating: Rating) -> Answer:
        """The answer, with arguments that fit. If nobody can be asked the call is rejected."""
        request = ApprovalRequest(call.name, call.args, rating)
        while True:
            try:
                answer = self.ask(request) if self.ask is not None else Answer(verdict="reject")
            except Exception:
                log.warning("nobody could be asked about %s", call.name, exc_info=True)
                return Answer(verdict="reject", reason="Nobody could be asked.")
            if answer.verdict != "edit":
                return answer
            fits, problem = self._fits(call.action, answer.args)
            if fits:
                return answer
            request = replace(request, problem=problem)

    def _fits(self, action: Any, args: Any) -> tuple[bool, str]:
        if hasattr(action, "parameters"):
            return self._registry.validate_args(action, args)
        return isinstance(args, Mapping), ""

    def _settled(self, call: Call, answer: Answer, rating: Rating | None = None) -> Flow:
        if answer.verdict == "reject":
            return _rejected(call.name, answer.reason or "No reason was given.", rating)
        if answer.verdict != "edit":
            return (yield _approved(call))
        fits, problem = self._fits(call.action, answer.args)
        if not fits or answer.args is None:
            return invalid_arguments(call.name, problem, getattr(call.action, "parameters", {}))
        envelope = yield _approved(replace(call, args=answer.args))
        return self._with_edit(envelope, answer.args)

    def _with_edit(self, envelope: dict[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
        said = str(self._environment.hidden.data(jsonable(args)))[
            :2000
        ]  # masked before it is cut: no mask finds a part of a secret
        notice = {
            "code": "arguments_edited",
            "message": f"The user changed the arguments. The call was made with these: {said}.",
            "hint": "Accept the change: do not do what the user removed.",
        }
        return {**envelope, "notices": [*envelope.get("notices", ()), notice]}

    def _postpone(self, tool: str) -> dict[str, Any]:
        if self._recorder is None:
            return _rejected(tool, "The decision was postponed, but this run cannot be paused.", None)
        self._recorder.stop(StopRun(f"{tool} waits for an approval.", RunStatus.paused))
        return Failure[Any](
            AgentErrorCode.approval_pending,
            f"{tool} waits for an approval; the run is paused.",
            "It will be carried out once it is approved.",
        ).to_dict()

    def _note(self, event: ev.Event) -> None:
        if self._recorder is not None:
            self._recorder.add(event)

    def _allow(self, tool: str, risk: Risk) -> None:
        self._session[tool] = max(risk, self._session.get(tool, risk))


class ApprovingEnvironment(LayeredEnvironment):
    """``inner`` with ``Approvals`` around it. Pass that as a layer instead: ``Agent(..., layers=[Approvals(...)])``.

    ``recorder`` is deprecated and has no effect: the run of an agent in this environment records its approvals.
    """

    layer: Approvals

    def __init__(
        self,
        inner: Environment,
        policy: ApprovalPolicy,
        ask: Ask | None = None,
        *,
        registry: ActionRegistry | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        if recorder is not None:
            warnings.warn("ApprovingEnvironment needs no recorder: leave it out.", DeprecationWarning, stacklevel=2)
        super().__init__(inner, Approvals(policy, ask, environment=inner, registry=registry))


def _approved(call: Call) -> Call:
    """The call, which the environment carries out without asking an approver."""
    return replace(call, within=(*call.within, partial(approving, lambda name, args: True)))  # noqa: ARG005


def _answer_of(event: ev.ApprovalAnswered) -> Answer:
    verdict: Verdict = "edit" if event.verdict == "edit" else "approve" if event.verdict == "approve" else "reject"
    return Answer(verdict=verdict, args=event.args, reason=event.reason)


def _rejected(tool: str, reason: str, rating: Rating | None) -> dict[str, Any]:
    why = f" It {', '.join(rating.reasons)}." if rating is not None and rating.reasons else ""
    return Failure[Any](
        ErrorCode.approval_refused,
        f"This call of {tool} was not approved and not carried out: {reason}{why}",
        "Do not do the same with another tool. Go on without it, or finish and say what you would have done.",
    ).to_dict()
