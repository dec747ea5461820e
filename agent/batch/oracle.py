"""The oracle: runs the solution that a task brings, to show that the task can be solved and that its verifier says so."""

from __future__ import annotations

import shlex

from agent.budget import Budget
from agent.goals import Goal
from agent.language import FunctionCallingLanguage
from agent.loop import Agent
from agent.model.scripted import ScriptedModel
from agent.tools import standard_registry
from sandbox.environment.base import Environment
from sandbox.errors import ErrorCode, SandboxError

from .tasks import BatchTask

SOLUTION = "/solution"


def oracle_agent(task: BatchTask, environment: Environment, budget: Budget) -> Agent:
    """The agent that runs the solution. Raises SandboxError ``invalid_configuration`` for a task that brings none."""
    if task.solution is None:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The task {task.id} brings no solution.",
            "Only tasks with solution/solve.sh can be tried so.",
        )
    environment.upload(task.solution, SOLUTION).unwrap()
    command = f"bash {shlex.quote(SOLUTION)}/solve.sh"
    seconds = {} if budget.max_seconds is None else {"timeout_seconds": budget.max_seconds}
    brain = ScriptedModel([
        {"tool": "run", "args": {"command": command, **seconds}},
        {"tool": "finish", "args": {"summary": "The solution was run."}},
    ])  # fmt: skip
    return Agent(
        [Goal(1, "solution", "Run it.")],
        FunctionCallingLanguage(),
        standard_registry(),
        brain,
        environment,
        budget=budget,
    )
