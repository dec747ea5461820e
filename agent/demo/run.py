"""The command ``gamebox demo``: the same path as ``gamebox agent``, on a library with a known bug."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from agent.core.budget import Budget
from agent.hub import AgentSpec, Hub
from agent.hub.finding import built_in
from agent.job.commands import brain_of, opener, show_ending, show_proofs
from agent.job.job import Job, carry_out
from agent.model.brain import Brain
from agent.model.scripted import ScriptedModel
from agent.views.screen import Screen

from .case import CASE, fetch_source
from .script import SCRIPT


def run_demo(model: str | None, image: str) -> int:
    """Let the agent fix the bug, print the diff and the tests that prove it, and return the exit code.

    A scripted brain does it, unless ``model`` names a real one. Raises SandboxError.
    """
    screen = Screen()
    budget = Budget()
    brain: Brain = ScriptedModel(SCRIPT) if model is None else brain_of(model, None, budget)
    screen.line(CASE.title, "bold")
    for citation in CASE.citations:
        screen.line(f"  {citation}", "dim")
    with tempfile.TemporaryDirectory(prefix="gamebox-demo-") as scratch:
        repo = fetch_source(Path(scratch), screen.line)
        hub = Hub(spec for spec in built_in() if isinstance(spec, AgentSpec))
        job = Job(
            task=CASE.task,
            repo=repo,
            brain=brain,
            open_environment=opener(image, local=False),
            spec=hub.load("coding"),
            hub=hub,
            budget=budget,
            proofs=(CASE.reproduce_command, CASE.test_command),
        )
        outcome = carry_out(job, screen)
    show_ending(outcome, screen)
    Screen(sys.stdout).diff(outcome.diff or "")
    show_proofs(outcome, screen)
    return outcome.exit_code
