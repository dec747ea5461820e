"""Finish checks: a run ends only if its claims hold. If a check fails, the model reads why and goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent.core.actions import Action
from agent.core.environment_wrapper import LayeredEnvironment
from agent.core.loop.layers import Flow, Layer
from agent.core.loop.turns import Call, entered
from agent.core.registry import ActionRegistry
from agent.core.run import AgentRun, Step
from agent.errors import AgentErrorCode
from agent.memory import Memory
from sandbox.envelope import Failure, jsonable
from sandbox.environment.base import Environment
from sandbox.environment.call_errors import answered
from sandbox.frozen import dataclass

log = logging.getLogger(__name__)

SHOWN_CHARS = 4000


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: whether it passed, and if not, the text for the model."""

    passed: bool
    told: str = ""


Check = Callable[[Environment, Mapping[str, Any]], Finding]


class CheckedFinish(Layer):
    """A layer that carries out a terminal call only if every check passes. Checks run in ``environment`` in order, up to the first
    that fails; one that raises has failed. After ``most`` refusals the call is carried out nevertheless, with a notice; None means
    no limit.
    """

    def __init__(self, checks: Sequence[Check], *, environment: Environment, most: int | None = None) -> None:
        if most is not None and most < 1:
            raise ValueError(f"most must be at least 1, got {most}.")
        self.checks, self.most = tuple(checks), most
        self.refused = 0
        self._environment = environment

    def before_step(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        if step.number == 1:
            self.refused = 0

    def around_do(self, call: Call) -> Flow:
        """Check before a terminal call."""
        if call.action is None or not call.action.terminal:
            return (yield call)
        with entered(call.within):  # an agent that verifies is a part of this call
            finding = self._finding(call.args if isinstance(call.args, Mapping) else {})
        if finding.passed:
            return (yield call)
        self.refused += 1
        if self.most is not None and self.refused > self.most:
            return _with_notice((yield call), finding.told)
        failure = Failure[Any](
            AgentErrorCode.finish_refused,
            f"The run does not end yet: {finding.told}",
            f"Correct that, then call {call.name} again.",
            next_tool=call.name,
        )
        return self._environment.hidden.data(failure.to_dict())

    def _finding(self, args: Mapping[str, Any]) -> Finding:
        for check in self.checks:
            try:
                finding = check(self._environment, args)
            except Exception as error:
                log.warning("a finish check failed", exc_info=True)
                finding = Finding(False, f"a check could not be made ({type(error).__name__}: {error})")
            if not finding.passed:
                return Finding(False, self._environment.hidden.mask.text(finding.told)[:SHOWN_CHARS])
        return Finding(True)


class FinishChecks(LayeredEnvironment):
    """``inner`` with ``CheckedFinish`` around it. Pass that as a layer instead: ``Agent(..., layers=[CheckedFinish(...)])``."""

    def __init__(self, inner: Environment, checks: Sequence[Check], *, most: int | None = None) -> None:
        super().__init__(inner, CheckedFinish(checks, environment=inner, most=most))


def fits_schema(schema: Mapping[str, Any]) -> Check:
    """Return a check that the arguments of the terminal action match this JSON schema."""
    probe = Action("result", lambda: None, "The result.", schema)

    def check(_: Environment, args: Mapping[str, Any]) -> Finding:
        fits, problem = ActionRegistry().validate_args(probe, jsonable(args))
        return Finding(fits, "" if fits else f"the result does not match its schema: {problem}")

    return check


def command_passes(command: str, timeout_seconds: float = 600.0) -> Check:
    """Return a check that the command exits with 0 in the sandbox, in a session of its own."""

    def check(environment: Environment, _: Mapping[str, Any]) -> Finding:
        answer = answered(environment.run, command, session=None, timeout_seconds=timeout_seconds)
        if answer.ok and answer.result.exit_code == 0:
            return Finding(True)
        return Finding(False, f"this command did not pass: {command}\n{answer.to_text()[-SHOWN_CHARS // 2 :]}")

    return check


def verified_by(verify: Callable[[Mapping[str, Any]], AgentRun]) -> Check:
    """Return a check that another agent agrees: ``verify`` runs it on the result. Its own result says so with
    ``{"passed": true}``, or gives a ``reason``; a run that did not finish does not agree.
    """

    def check(_: Environment, args: Mapping[str, Any]) -> Finding:
        run = verify(args)
        if not run.ok or not isinstance(run.result, Mapping):
            return Finding(False, f"the verifier reached no verdict: {run.reason}")
        passed = run.result.get("passed") is True
        return Finding(passed, "" if passed else f"the verifier says: {run.result.get('reason') or 'it is not done'}")

    return check


def _with_notice(envelope: dict[str, Any], told: str) -> dict[str, Any]:
    notice = {"code": "finish_unchecked", "message": f"The run ended although a check failed: {told}", "hint": ""}
    return {**envelope, "notices": [*envelope.get("notices", ()), notice]}
