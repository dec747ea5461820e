"""The oracle runs the solution that comes with a task, to show that the task can be solved and that its verifier
agrees.
"""

from __future__ import annotations

import shlex

from agent.core.agent import Agent
from agent.core.budget import Budget
from agent.core.goals import Goal
from agent.language import FunctionCallingLanguage
from agent.model.scripted import ScriptedModel
from agent.tools import standard_registry
from sandbox.environment.base import Environment
from sandbox.errors import ErrorCode, SandboxError

from .tasks import BatchTask

SOLUTION = "/solution"


def oracle_agent(task: BatchTask, environment: Environment, budget: Budget) -> Agent:
    """Return the agent that runs the solution. Raises SandboxError ``invalid_configuration`` for a task without one."""
    if task.solution is None:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The task {task.id} has no solution.",
            "Only tasks with solution/solve.sh can be run with --agent oracle.",
        )
    environment.upload(task.solution, SOLUTION).unwrap()
    command = f"bash {shlex.quote(SOLUTION)}/solve.sh"
    seconds = {} if budget.max_seconds is None else {"timeout_seconds": budget.max_seconds}
    brain = ScriptedModel(
        [
            {"tool": "run", "args": {"command": command, **seconds}},
            {"tool": "finish", "args": {"summary": "The solution was run."}},
        ]
    )
    return Agent(
        [Goal(1, "solution", "Run it.")],
        FunctionCallingLanguage(),
        standard_registry(),
        brain,
        environment,
        budget=budget,
    )
