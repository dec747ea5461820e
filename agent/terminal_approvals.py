"""Approvals on a terminal: the call is shown, and whoever sits there answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from sandbox.cli.status_line import terminal
from sandbox.envelope import jsonable
from sandbox.text.invisible import visible

from . import lineage
from .approvals import Answer, ApprovalPolicy, ApprovalRequest, ApprovingEnvironment, Ask
from .loop import Agent
from .recorded import RecordedEnvironment
from .risk import Risk
from .show import Screen, declared, main_argument
from .typed import read_line

WORDS = {"approve": "a", "session": "s", "edit": "e", "reject": "r", "later": "l"}
CHOICES = "[a]pprove this call, all of {tool} up to risk {risk} in this [s]ession, [e]dit, [r]eject, [l]ater (pauses the run)"


def laid_over(agent: Agent, approve: str, ask: Ask | None) -> None:
    """Have what ``approve`` says (never, risky, always) approved before it reaches the agent's environment."""
    if approve not in ("risky", "always"):
        return
    inner = agent.environment
    recorder = inner.recorder if isinstance(inner, RecordedEnvironment) else None
    policy = ApprovalPolicy(
        default="risky" if approve == "risky" else "always",
        tools={"think": "never", "finish": "never"},
        threshold=Risk.unknown,  # what nothing is known of is asked about, too
    )
    agent.environment = ApprovingEnvironment(inner, policy, ask, registry=agent.actions, recorder=recorder)


def ask_on(screen: Screen, read: Callable[[], str] | None = None) -> Ask | None:
    """What asks on the terminal; None where standard input is none."""
    if read is None:
        if not sys.stdin.isatty():
            return None
        read = _line

    def asked(request: ApprovalRequest) -> Answer:
        with terminal().hidden():  # the answer is typed where the status line is
            return _ask(screen, read, request)

    return asked


def ask_user_on(screen: Screen, read: Callable[[], str] | None = None) -> Callable[[str], str | None] | None:
    """What asks a question of the agent on the terminal (see ``Setting.ask_user``); None where standard input is none."""
    if read is None:
        if not sys.stdin.isatty():
            return None
        read = _line

    def asked(question: str) -> str | None:
        with terminal().hidden():
            screen.line(f"\nthe agent asks: {question}", "bold yellow")
            return read().strip() or None

    return asked


def _ask(screen: Screen, read: Callable[[], str], request: ApprovalRequest) -> Answer:
    here = lineage.current()
    whose = f" (of the agent {here.agent})" if here is not None and here.depth else ""
    call = main_argument(request.args, declared(request.tool))
    screen.line(f"\nto be approved{whose}: {visible(request.tool, one_line=True)} {call}", "bold yellow")
    screen.line(json.dumps(jsonable(request.args), ensure_ascii=False, indent=2), "dim")
    why = f": {', '.join(request.rating.reasons)}" if request.rating.reasons else ""
    screen.line(f"risk {request.rating.risk.name}{why}", "yellow")
    if request.problem:
        screen.line(f"these arguments do not fit: {request.problem}", "red")
    while True:
        screen.line(CHOICES.format(tool=request.tool, risk=request.rating.risk.name))
        said = read()
        word = said.strip().lower()
        choice = word if len(word) < 2 else WORDS.get(word, "?")
        if choice in ("a", "s"):
            return Answer(verdict="approve", for_session=choice == "s")
        if choice == "r":
            screen.line("why? (is told to the model)")
            return Answer(verdict="reject", reason=read().strip())
        if choice == "l" or not said:  # the end of the input
            return Answer(verdict="later")
        if choice == "e":
            args = _edited(screen, read)
            if args is not None:
                return Answer(verdict="edit", args=args)


def _edited(screen: Screen, read: Callable[[], str]) -> Mapping[str, Any] | None:
    screen.line("the arguments as JSON, on one line:")
    try:
        args = json.loads(read())
    except (ValueError, RecursionError) as error:
        screen.line(f"that is no JSON: {error}", "red")
        return None
    return args if isinstance(args, dict) else None


def _line() -> str:
    return read_line()
