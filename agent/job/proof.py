"""Proof: commands that run in the sandbox after the agent has finished, so that nobody has to take its word."""

from __future__ import annotations

from collections.abc import Iterable

from sandbox.environment.base import Environment
from sandbox.environment.call_errors import answered
from sandbox.frozen import dataclass

SECONDS = 600.0
SHOWN_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Proof:
    """A command, whether it exited with 0, and the end of its output."""

    command: str
    passed: bool
    output: str


def prove(environment: Environment, commands: Iterable[str]) -> tuple[Proof, ...]:
    """Run each command in a clean session, also after one has failed."""
    return tuple(_prove(environment, command) for command in commands)


def _prove(environment: Environment, command: str) -> Proof:
    answer = answered(environment.run, command, session=None, timeout_seconds=SECONDS)
    text = answer.to_text()
    return Proof(command, answer.ok and answer.result.exit_code == 0, text[-SHOWN_CHARS:])
