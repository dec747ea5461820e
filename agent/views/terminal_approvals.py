"""Approvals and questions on a terminal: the call or question is printed, and the user answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from agent.core.agent import Agent
from agent.layers.approvals import Answer, ApprovalPolicy, ApprovalRequest, Approvals, Ask
from agent.layers.risk import Risk
from agent.record import lineage
from agent.record.call_summary import parameters_of, summarize_args
from sandbox.cli.status_line import terminal
from sandbox.envelope import jsonable
from sandbox.text.invisible import visible

from .screen import Screen
from .terminal_input import expecting, read_line

WORDS = {"approve": "a", "session": "s", "edit": "e", "reject": "r", "later": "l"}
CHOICES = (
    "[a]pprove this call, all of {tool} up to risk {risk} in this [s]ession, [e]dit, [r]eject, [l]ater (pauses the run)"
)


def require_approvals(agent: Agent, approve: str, ask: Ask | None) -> None:
    """Have calls approved before the agent carries them out; ``approve`` says which: never, risky or always."""
    if approve not in ("risky", "always"):
        return
    policy = ApprovalPolicy(
        default="risky" if approve == "risky" else "always",
        tools={"think": "never", "finish": "never"},
        threshold=Risk.unknown,  # also ask about calls of which nothing is known
    )
    agent.layers = (Approvals(policy, ask, environment=agent.environment, registry=agent.actions), *agent.layers)


def ask_on(screen: Screen, read: Callable[[], str] | None = None) -> Ask | None:
    """Return what asks for approvals on the terminal; None if standard input is not a terminal."""
    if read is None:
        if not sys.stdin.isatty():
            return None
        read = _line

    def asked(request: ApprovalRequest) -> Answer:
        with terminal().hidden():  # the user types where the status line is
            return _ask(screen, read, request)

    return asked


def ask_user_on(screen: Screen, read: Callable[[], str] | None = None) -> Callable[[str], str | None] | None:
    """Return what asks the agent's questions on the terminal (``Setting.ask_user``); None if standard input is not one."""
    if read is None:
        if not sys.stdin.isatty():
            return None
        read = _line

    def asked(question: str) -> str | None:
        with terminal().hidden():
            return _answer(screen, read, f"\nthe agent asks: {question}", "bold yellow").strip() or None

    return asked


def _ask(screen: Screen, read: Callable[[], str], request: ApprovalRequest) -> Answer:
    here = lineage.current()
    whose = f" (of the agent {here.agent})" if here is not None and here.depth else ""
    call = summarize_args(request.args, parameters_of(request.tool))
    screen.line(f"\napproval needed{whose}: {visible(request.tool, one_line=True)} {call}", "bold yellow")
    screen.line(json.dumps(jsonable(request.args), ensure_ascii=False, indent=2), "dim")
    why = f": {', '.join(request.rating.reasons)}" if request.rating.reasons else ""
    screen.line(f"risk {request.rating.risk.name}{why}", "yellow")
    if request.problem:
        screen.line(f"These arguments are invalid: {request.problem}", "red")
    while True:
        said = _answer(screen, read, CHOICES.format(tool=request.tool, risk=request.rating.risk.name))
        word = said.strip().lower()
        choice = word if len(word) < 2 else WORDS.get(word, "?")
        if choice in ("a", "s"):
            return Answer(verdict="approve", for_session=choice == "s")
        if choice == "r":
            return Answer(verdict="reject", reason=_answer(screen, read, "Reason (sent to the agent):").strip())
        if choice == "l" or not said:  # the end of the input
            return Answer(verdict="later")
        if choice == "e":
            args = _edited(screen, read)
            if args is not None:
                return Answer(verdict="edit", args=args)


def _edited(screen: Screen, read: Callable[[], str]) -> Mapping[str, Any] | None:
    try:
        args = json.loads(_answer(screen, read, "The arguments as JSON, on one line:"))
    except (ValueError, RecursionError) as error:
        screen.line(f"That is not JSON: {error}", "red")
        return None
    return args if isinstance(args, dict) else None


def _answer(screen: Screen, read: Callable[[], str], question: str, style: str = "") -> str:
    with expecting():  # a line typed as soon as the question is seen is its answer
        screen.line(question, style)
        return read()


def _line() -> str:
    return read_line()
