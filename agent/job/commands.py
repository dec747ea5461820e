"""The commands ``agent``, ``demo`` and ``check``, once their options are read: run, report the outcome, choose the
exit code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.core.status import RunStatus
from agent.record.store import EventLog
from agent.views.screen import Screen
from agent.views.usage_text import count_files, summary_line
from sandbox.cli.errors import bad_input
from sandbox.cli.run import print_json
from sandbox.cli.sandbox_options import Kept
from sandbox.docker.spec import DEFAULT_CPUS, DEFAULT_MEMORY
from sandbox.environment.base import Environment
from sandbox.text.invisible import visible, visible_output
from sandbox.text.wording import duration

from .job import Outcome, carry_out
from .models import brain_of
from .options import AgentOptions
from .recorded import carry_out_recorded
from .repository_image import devcontainer_note
from .telemetry import tracing

__all__ = ["brain_of", "opener", "run_agent", "run_check", "show_ending", "show_outcome", "show_proofs"]


def run_agent(arguments: Mapping[str, Any], *, model_is_default: bool = False) -> int:
    """Run ``gamebox agent`` with its options by name, and return its exit code.

    With ``model_is_default`` the model is a default of the user's: an agent or a script that needs no model ignores
    it. Raises SandboxError for invalid input.
    """
    beside = ("as_json", "log", "no_log", "no_agents_md", "otel")
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in arguments.items() if n not in beside}
    named = AgentOptions.of_command({**values, "agents_md": not arguments["no_agents_md"]})
    options = named.with_repository(Path.cwd()).with_image()
    if (
        model_is_default
        and options.model is not None
        and (options.script is not None or not options.found()[1].needs_model)
    ):
        options = replace(options, model=None)
    as_json, log = bool(arguments["as_json"]), arguments["log"]
    if arguments["no_log"] and options.keeps:
        raise bad_input(
            "With --no-log no sandbox can be kept: its name is the id of its recorded run.",
            "Leave out --no-log, or --keep and --keep-seconds.",
        )
    job = options.job()  # what is wrong with the options is said before a log is made
    screen = Screen()
    if options.repo != named.repo:
        screen.line(f"the repository is {options.repo}, the git work tree of this folder; --repo names another", "dim")
    for line in (options.image_why, "" if options.devcontainer else devcontainer_note(options.repo, options.sandbox)):
        if line:
            screen.line(line, "dim")
    with tracing(arguments.get("otel"), lambda line: screen.line(line, "dim")) as layers:
        if arguments["no_log"]:
            return show_outcome(carry_out(replace(job, layers=layers), screen), screen, as_json=as_json)
        with EventLog(log) as events:
            return show_outcome(carry_out_recorded(options, events, screen, layers), screen, as_json=as_json)


def show_outcome(outcome: Outcome, screen: Screen, *, as_json: bool) -> int:
    """Report the outcome, print the diff (or everything as JSON), and return the exit code."""
    show_ending(outcome, screen)
    if as_json:
        print_json(outcome.to_dict())
    elif outcome.diff:
        Screen(sys.stdout).diff(outcome.diff)
    return outcome.exit_code


def run_dummy(runtime: str | None, *, as_json: bool) -> int:
    """Run ``gamebox doctor --agents``, and return its exit code: 1 if an action did not answer as expected.

    The agent ``dummy`` calls every action in a sandbox. Raises SandboxError, as ``carry_out`` does.
    """
    task = "Call every action, and check each answer."
    options = AgentOptions(task=task, agent="dummy", sandbox={} if runtime is None else {"runtime": runtime})
    screen = Screen()
    return show_outcome(carry_out(options.job(), screen), screen, as_json=as_json)


def run_check(target: str) -> int:
    """Run ``gamebox check``, and return its exit code: 1 if a check failed."""
    from .check import check_agent, load_agent

    findings = check_agent(load_agent(target))
    for finding in findings:
        sys.stdout.write(f"{finding.verdict:<5} {finding.item}: {finding.found}\n")
        if finding.hint:
            sys.stdout.write(f"      hint: {finding.hint}\n")
    return 1 if any(f.verdict == "fail" for f in findings) else 0


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
    pull: bool = False,
) -> Callable[[Path], Environment]:
    """Return what creates the sandbox for a folder; see ``AgentOptions.opener``."""
    options = AgentOptions(
        task="",
        image=image,
        memory=memory,
        cpus=cpus,
        local=local,
        network=network,
        allow=tuple(allow),
        cache=cache,
        network_log=network_log,
        pull=pull,
    )
    return options.opener(Kept())


def show_proofs(outcome: Outcome, screen: Screen) -> None:
    """Print the commands that were run after the agent had finished, and their output, to standard error."""
    for proof in outcome.proofs:
        first, *more = proof.command.strip().splitlines()
        screen.line(f"\ncheck after the run: {first}{' …' if more else ''}", "bold")
        screen.line(visible_output(proof.output), "green" if proof.passed else "red")


def show_ending(outcome: Outcome, screen: Screen) -> None:
    """Print how the run ended to standard error."""
    _show_result(outcome, screen)
    screen.line(f"\n{summary_line(outcome.run)}", "green" if outcome.run.ok else "yellow")
    error = outcome.run.error
    if getattr(error, "hint", ""):
        screen.line(f"hint: {getattr(error, 'hint', '')}")
    for path in outcome.skipped:
        screen.line(f"not copied back: {visible(path, one_line=True)}", "yellow")
    if outcome.unrecorded:
        screen.line(f"the end of the run {outcome.recorded} could not be recorded", "red")
    if outcome.kept:
        _show_kept(outcome, screen)
    if not outcome.kept or outcome.diff is not None:
        _show_changes(outcome, screen)


def _show_kept(outcome: Outcome, screen: Screen) -> None:
    """Print how to reach the sandbox that is still there."""
    run, time = outcome.recorded, duration(outcome.kept_seconds)
    if outcome.resumable:
        how = {
            RunStatus.paused: "paused",
            RunStatus.model_failed: f"the model failed, and the sandbox waits for {time}",
        }.get(outcome.run.status, "cut off")
        screen.line(f"{how}; continue with: gamebox runs resume {run}", "yellow")
        screen.line(f"or remove the run and its sandbox: gamebox runs rm {run}", "yellow")
        if outcome.asked_to_keep:
            screen.line(f"look into it: gamebox shell {outcome.sandbox}", "yellow")
    elif outcome.diff is None:
        _show_refusal(outcome, screen)
        screen.line("its changes could not be copied back, so its sandbox is kept:", "yellow")
        screen.line(f"look into it: gamebox run --in run-{run} -- ls; remove it: gamebox rm run-{run}", "yellow")
    else:
        screen.line(f"its sandbox {outcome.sandbox} is kept until nobody has used it for {time}:", "yellow")
        screen.line(f"look into it: gamebox shell {outcome.sandbox}; remove it: gamebox rm {outcome.sandbox}", "yellow")


def _show_changes(outcome: Outcome, screen: Screen) -> None:
    if outcome.interrupted:
        screen.line("interrupted; the sandbox is gone and nothing was written back", "yellow")
    elif outcome.refused is not None:
        _show_refusal(outcome, screen)
    elif outcome.diff is None:
        screen.line("no diff: the sandbox could not be read any more", "red")
    elif outcome.applied:
        screen.line(f"{count_files(outcome.changes)} written back", "green")
    else:
        screen.line(f"{count_files(outcome.changes)} changed")


def _show_refusal(outcome: Outcome, screen: Screen) -> None:
    if outcome.refused is not None:
        screen.line(f"error: {outcome.refused.message} ({outcome.refused.code.value})", "red")
        screen.line(f"hint: {outcome.refused.hint}")


def _show_result(outcome: Outcome, screen: Screen) -> None:
    result: Any = outcome.run.result
    if isinstance(result, dict) and isinstance(result.get("summary"), str):
        screen.line(f"\n{result['summary']}")
    elif isinstance(result, dict) and outcome.run.ok:
        for name, value in result.items():
            screen.line(f"\n{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
