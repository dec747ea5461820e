"""What the commands ``agent``, ``demo`` and ``check`` do once their options are read."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sandbox.cli import DEFAULT_CPUS, DEFAULT_MEMORY, bad_input, print_json
from sandbox.environment import Environment

from .budget import Budget
from .job import Job, Outcome, carry_out
from .language import AgentLanguage, FunctionCallingLanguage, JsonLanguage
from .model.brain import Brain
from .show import Screen, files, summary_line

LANGUAGES: dict[str, type[AgentLanguage]] = {"function_calling": FunctionCallingLanguage, "json": JsonLanguage}


def run_agent(
    *,
    task: str,
    repo: Path,
    model: str | None,
    script: Path | None,
    image: str,
    apply: bool,
    as_json: bool,
    language: str,
    max_iterations: int,
    max_cost: float | None,
    max_seconds: float | None,
    max_tokens: int | None,
    memory: str,
    cpus: float,
    local: bool,
    network: str | None = None,
    allow: Sequence[str] = (),
    cache: Path | None = None,
    network_log: Path | None = None,
    agents_md: bool = True,
) -> int:
    """The command ``gamebox agent``; returns its exit code. Raises SandboxError for bad input."""
    if not task.strip():
        raise bad_input("The task is empty.", 'Say what to do, as in: gamebox agent "make the failing test pass" ...')
    if language not in LANGUAGES:
        raise bad_input(f"--language {language!r} is not known.", f"Use {' or '.join(LANGUAGES)}.")
    budget = budget_of(max_iterations, max_seconds, max_tokens, max_cost)
    job = Job(
        task=task,
        repo=repo,
        brain=brain_of(model, script, budget),
        open_environment=opener(
            image, memory=memory, cpus=cpus, local=local, network=network, allow=allow, cache=cache, network_log=network_log
        ),
        language=LANGUAGES[language](),
        budget=budget,
        apply=apply,
        agents_md=agents_md,
    )
    screen = Screen()
    outcome = carry_out(job, screen)
    tell(outcome, screen)
    if as_json:
        print_json(outcome.to_dict())
    elif outcome.diff:
        Screen(sys.stdout).diff(outcome.diff)
    return outcome.exit_code


def run_check(target: str) -> int:
    """The command ``gamebox check``; returns its exit code: 0, or 1 when something failed."""
    from .check import check_agent
    from .loading import load

    findings = check_agent(load(target))
    for finding in findings:
        sys.stdout.write(f"{finding.verdict:<5} {finding.item}: {finding.found}\n")
        if finding.hint:
            sys.stdout.write(f"      hint: {finding.hint}\n")
    return 1 if any(f.verdict == "fail" for f in findings) else 0


def budget_of(iterations: int, seconds: float | None, tokens: int | None, cost: float | None) -> Budget:
    """The budget of the options. Raises SandboxError for a limit that is not positive."""
    try:
        return Budget(max_iterations=iterations, max_seconds=seconds, max_tokens=tokens, max_cost_usd=cost)
    except ValueError as error:
        raise bad_input(f"A limit is no good: {error}", "Give a positive number, or leave the option out.") from error


def brain_of(model: str | None, script: Path | None, budget: Budget) -> Brain:
    """The brain the options ask for, checked as far as can be without a call. Raises SandboxError."""
    if (model is None) == (script is None):
        raise bad_input(
            "Give either --model or --script." if model else "No model was named.",
            "Use --model provider/name, for example --model anthropic/claude-sonnet-4-5, or --script FILE.json.",
        )
    if script is not None:
        from .model.scripted import ScriptedModel

        return ScriptedModel.from_file(script)
    from .model.litellm_model import LiteLLMModel

    brain = LiteLLMModel(model or "")
    brain.check()
    if budget.max_cost_usd is not None and not brain.is_priced():
        raise bad_input(
            f"--max-cost cannot be kept: the price of {model} is not known.", "Use --max-tokens instead of --max-cost."
        )
    return brain


def opener(
    image: str,
    *,
    memory: str = DEFAULT_MEMORY,
    cpus: float = DEFAULT_CPUS,
    local: bool,
    network: str | None = None,
    allow: Sequence[str] = (),
    cache: Path | None = None,
    network_log: Path | None = None,
) -> Callable[[Path], Environment]:
    """What makes the sandbox around a folder; its network is what ``network`` and ``allow`` open, as for ``gamebox run``."""
    from sandbox.cli import sandbox_of

    def opened(folder: Path) -> Environment:
        if local:  # it works in the folder it is given, and ours must stay as it is: the diff is made against it
            folder = Path(shutil.copytree(folder, folder.with_name("local"), symlinks=True))
        return sandbox_of(
            image, folder, network, memory, cpus, local, allow=allow, cache=cache, network_log=network_log
        )

    return opened


def tell_proofs(outcome: Outcome, screen: Screen) -> None:
    """The commands that were run after the agent had finished, and what they said, on standard error."""
    for proof in outcome.proofs:
        first, *more = proof.command.strip().splitlines()
        screen.line(f"\nafterwards, run by us: {first}{' …' if more else ''}", "bold")
        screen.line(proof.output, "green" if proof.passed else "red")


def tell(outcome: Outcome, screen: Screen) -> None:
    """How it ended, on standard error."""
    result: Any = outcome.run.result
    if isinstance(result, dict) and isinstance(result.get("summary"), str):
        screen.line(f"\n{result['summary']}")
    screen.line(f"\n{summary_line(outcome.run)}", "green" if outcome.run.ok else "yellow")
    error = outcome.run.error
    if getattr(error, "hint", ""):
        screen.line(f"hint: {getattr(error, 'hint', '')}")
    for path in outcome.skipped:
        screen.line(f"not brought back: {path}", "yellow")
    if outcome.interrupted:
        screen.line("interrupted; the sandbox is gone and nothing was written back", "yellow")
    elif outcome.diff is None:
        screen.line("no diff: the sandbox could not be read any more", "red")
    elif outcome.refused is not None:
        screen.line(f"error: {outcome.refused.message} ({outcome.refused.code.value})", "red")
        screen.line(f"hint: {outcome.refused.hint}")
    elif outcome.applied:
        screen.line(f"{files(outcome.changes)} written back", "green")
    else:
        screen.line(f"{files(outcome.changes)} changed")
