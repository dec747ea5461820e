"""Approvals: which calls somebody has to approve, what they may answer, and the environment that asks before it hands over.

A call that waits is an event of the run: it survives a restart, and is carried out once, after it was approved.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeAlias

from sandbox.envelope import Failure, jsonable
from sandbox.environment.base import ActionLike, Environment
from sandbox.errors import ErrorCode

from . import events as ev
from .envelopes import invalid_arguments
from .errors import AgentErrorCode
from .recording import Recorder
from .registry import ActionRegistry
from .risk import Analyzer, Rating, Risk, by_pattern, rating_of
from .status import RunStatus, StopRun
from .wrapped import WrappedEnvironment

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
        """The risk of a call."""
        return rating_of(action, args, self.analyzers)

    def needs(self, action: ActionLike, args: Mapping[str, Any], rating: Rating) -> bool:
        """Whether the call needs an approval."""
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

_approved: ContextVar[bool] = ContextVar("gamebox_approved", default=False)


class ApprovingEnvironment(WrappedEnvironment):
    """An environment around ``inner`` that passes on only calls that need no approval, or that have one. It wraps the record.

    Without ``ask``, calls that need an approval are rejected. An action whose metadata says ``requires_approval`` needs one
    under every policy: the environment's own ``approver`` is asked if it has one, else ``ask``.
    """

    def __init__(
        self,
        inner: Environment,
        policy: ApprovalPolicy,
        ask: Ask | None = None,
        *,
        registry: ActionRegistry | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(inner)
        self.policy, self.ask = policy, ask
        self._registry = registry or ActionRegistry()
        self._recorder: Recorder | None = None
        self._session: dict[str, Risk] = {}
        if recorder is not None:
            self.around(inner, recorder)
        # That of an approving environment above, whose agent has delegated to this one, has approved the delegation alone.
        self._own_approver = inner.approver in (None, _is_approved) and ask is not None
        if self._own_approver:
            inner.approver = _is_approved

    def around(self, inner: Environment, recorder: Recorder) -> Self:
        """The same around ``inner``, which ``recorder`` records: what waits, and what was answered, is in the log from here on."""
        self.inner, self._recorder = inner, recorder
        for answer in recorder.resumed.approved if recorder.resumed is not None else ():
            self._allow(answer.tool, Risk.__members__.get(answer.risk, Risk.low))
        return self

    def without_recorder(self, recorder: Recorder) -> None:
        """Stop recording with ``recorder``, whose run has ended."""
        if self._recorder is recorder:
            self._recorder = None

    def execute_action(self, action: ActionLike, args: Any) -> dict[str, Any]:
        """See the base class."""
        if not isinstance(args, Mapping):
            return self.inner.execute_action(action, args)
        replayed = None if self._recorder is None else self._recorder.replayed
        if replayed is not None and replayed.answered is not None:
            return self._settled(action, args, _answer_of(replayed.answered))
        if replayed is not None and replayed.started is not None:
            return self._handed_over(action, args)  # it needed none then
        rating = self.policy.rated(action, args)
        required = self._own_approver and bool((getattr(action, "metadata", None) or {}).get("requires_approval"))
        if not required and not self.policy.needs(action, args, rating):
            return self.inner.execute_action(action, args)
        if self._session.get(action.name, Risk(1) - 1) >= rating.risk:
            return self._handed_over(action, args)
        return self._decided(action, args, rating, asked=replayed is not None and replayed.requested is not None)

    def _decided(self, action: ActionLike, args: Mapping[str, Any], rating: Rating, *, asked: bool) -> dict[str, Any]:
        step = 0 if self._recorder is None else self._recorder.step
        if self.ask is None:
            return _rejected(action, "nobody is there to approve it.", rating)
        try:
            if not asked:
                self._note(
                    ev.ApprovalRequested(
                        step=step, tool=action.name, args=jsonable(args), risk=rating.risk.name, reasons=rating.reasons
                    )
                )
            answer = self._asked(action, args, rating)
            if answer.verdict == "later":
                return self._put_off(action)
            self._note(
                ev.ApprovalAnswered(
                    step=step, tool=action.name, verdict=answer.verdict, risk=rating.risk.name, args=jsonable(answer.args),
                    reason=answer.reason, for_session=answer.for_session,
                )
            )  # fmt: skip
        except StopRun as stop:  # it could not be recorded; the recorder ends the run
            return Failure[Any](AgentErrorCode.log_unusable, stop.reason, "Repair the log, then resume the run.").to_dict()
        if answer.for_session and answer.verdict != "reject":
            self._allow(action.name, rating.risk)
        return self._settled(action, args, answer, rating)

    def _asked(self, action: ActionLike, args: Mapping[str, Any], rating: Rating) -> Answer:
        """The answer, with arguments that fit. One that fails to ask has put it off."""
        request = ApprovalRequest(action.name, args, rating)
        while True:
            try:
                answer = self.ask(request) if self.ask is not None else Answer(verdict="reject")
            except Exception:
                log.warning("nobody could be asked about %s", action.name, exc_info=True)
                return Answer(verdict="reject", reason="Nobody could be asked.")
            if answer.verdict != "edit":
                return answer
            fits, problem = self._fits(action, answer.args)
            if fits:
                return answer
            request = replace(request, problem=problem)

    def _fits(self, action: ActionLike, args: Any) -> tuple[bool, str]:
        known: Any = action
        return (
            self._registry.validate_args(known, args)
            if hasattr(known, "parameters")
            else (isinstance(args, Mapping), "")
        )

    def _settled(
        self, action: ActionLike, args: Mapping[str, Any], answer: Answer, rating: Rating | None = None
    ) -> dict[str, Any]:
        if answer.verdict == "reject":
            return _rejected(action, answer.reason or "No reason was given.", rating)
        if answer.verdict == "edit":
            fits, problem = self._fits(action, answer.args)
            if not fits or answer.args is None:
                return invalid_arguments(action.name, problem, getattr(action, "parameters", {}))
            return self._with_edit(self._handed_over(action, answer.args), answer.args)
        return self._handed_over(action, args)

    def _with_edit(self, envelope: dict[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
        said = str(self.hidden.data(jsonable(args)))[:2000]  # masked before it is cut: no mask finds a part of a secret
        notice = {
            "code": "arguments_edited",
            "message": f"The user changed the arguments. The call was made with these: {said}.",
            "hint": "Leave it at that: do not do what the user took out.",
        }
        return {**envelope, "notices": [*envelope.get("notices", ()), notice]}

    def _handed_over(self, action: ActionLike, args: Mapping[str, Any]) -> dict[str, Any]:
        token = _approved.set(True)
        try:
            return self.inner.execute_action(action, args)
        finally:
            _approved.reset(token)

    def _put_off(self, action: ActionLike) -> dict[str, Any]:
        if self._recorder is None:
            return _rejected(action, "It was put off, and this run cannot be paused.", None)
        self._recorder.stop(StopRun(f"{action.name} waits for an approval.", RunStatus.paused))
        return Failure[Any](
            AgentErrorCode.approval_pending,
            f"{action.name} waits for an approval; the run is paused.",
            "It is carried out when it was approved.",
        ).to_dict()

    def _note(self, event: ev.Event) -> None:
        if self._recorder is not None:
            self._recorder.add(event)

    def _allow(self, tool: str, risk: Risk) -> None:
        self._session[tool] = max(risk, self._session.get(tool, risk))


def _is_approved(name: str, args: Mapping[str, Any]) -> bool:  # noqa: ARG001 - as an approver is asked
    return _approved.get()


def _answer_of(event: ev.ApprovalAnswered) -> Answer:
    verdict: Verdict = "edit" if event.verdict == "edit" else "approve" if event.verdict == "approve" else "reject"
    return Answer(verdict=verdict, args=event.args, reason=event.reason)


def _rejected(action: ActionLike, reason: str, rating: Rating | None) -> dict[str, Any]:
    why = f" It {', '.join(rating.reasons)}." if rating is not None and rating.reasons else ""
    return Failure[Any](
        ErrorCode.approval_refused,
        f"This call of {action.name} was not approved, and not carried out: {reason}{why}",
        "Do not do the same with another tool. Go on without it, or finish and say what you would have done.",
    ).to_dict()
