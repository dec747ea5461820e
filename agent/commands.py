"""What the commands ``agent``, ``demo`` and ``check`` do once their options are read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandbox.cli.errors import bad_input
from sandbox.cli.run import print_json
from sandbox.cli.sandbox_options import Kept
from sandbox.docker.spec import DEFAULT_CPUS, DEFAULT_MEMORY
from sandbox.environment.base import Environment
from sandbox.text.invisible import visible, visible_output
from sandbox.text.wording import duration

from .job import Outcome, carry_out
from .options import AgentOptions, brain_of
from .recorded_job import carry_out_recorded
from .show import Screen, files, summary_line
from .status import RunStatus
from .store import EventLog

__all__ = ["brain_of", "opener", "run_agent", "run_check", "show_outcome", "tell", "tell_proofs"]


def run_agent(given: Mapping[str, Any], *, model_is_default: bool = False) -> int:
    """The command ``gamebox agent``, with its options by name as they were given; returns its exit code.

    With ``model_is_default`` nobody chose the model for this run, and an agent or a script that needs none goes without.

    Raises SandboxError for bad input.
    """
    beside = ("as_json", "log", "no_log", "no_agents_md")
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in given.items() if n not in beside}
    named = AgentOptions.of_command({**values, "agents_md": not given["no_agents_md"]})
    options = named.with_repository(Path.cwd())
    if model_is_default and options.model is not None and (options.script is not None or not options.found()[1].needs_model):
        options = replace(options, model=None)
    as_json, log = bool(given["as_json"]), given["log"]
    if given["no_log"] and options.keeps:
        raise bad_input(
            "With --no-log no sandbox can be kept: its name is the id of its recorded run.",
            "Leave out --no-log, or --keep and --keep-seconds.",
        )
    job = options.job()  # what is wrong with the options is said before a log is made
    screen = Screen()
    if options.repo != named.repo:
        screen.line(f"the repository is {options.repo}, the git work tree of this folder; --repo names another", "dim")
    if given["no_log"]:
        return show_outcome(carry_out(job, screen), screen, as_json=as_json)
    with EventLog(log) as events:
        return show_outcome(carry_out_recorded(options, events, screen), screen, as_json=as_json)


def show_outcome(outcome: Outcome, screen: Screen, *, as_json: bool) -> int:
    """Tell what came of it, print the diff, or all of it as JSON; the exit code."""
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
    """What makes the sandbox around a folder; see ``AgentOptions.opener``."""
    options = AgentOptions(
        task="", image=image, memory=memory, cpus=cpus, local=local, network=network, allow=tuple(allow),
        cache=cache, network_log=network_log, pull=pull,
    )  # fmt: skip
    return options.opener(Kept())


def tell_proofs(outcome: Outcome, screen: Screen) -> None:
    """The commands that were run after the agent had finished, and what they said, on standard error."""
    for proof in outcome.proofs:
        first, *more = proof.command.strip().splitlines()
        screen.line(f"\nafterwards, run by us: {first}{' …' if more else ''}", "bold")
        screen.line(visible_output(proof.output), "green" if proof.passed else "red")


def tell(outcome: Outcome, screen: Screen) -> None:
    """How it ended, on standard error."""
    _tell_result(outcome, screen)
    screen.line(f"\n{summary_line(outcome.run)}", "green" if outcome.run.ok else "yellow")
    error = outcome.run.error
    if getattr(error, "hint", ""):
        screen.line(f"hint: {getattr(error, 'hint', '')}")
    for path in outcome.skipped:
        screen.line(f"not brought back: {visible(path, one_line=True)}", "yellow")
    if outcome.unrecorded:
        screen.line(f"the end of the run {outcome.recorded} could not be recorded", "red")
    if outcome.kept:
        _tell_kept(outcome, screen)
    if not outcome.kept or outcome.diff is not None:
        _tell_changes(outcome, screen)


def _tell_kept(outcome: Outcome, screen: Screen) -> None:
    """How to get at the sandbox that is still there."""
    run, time = outcome.recorded, duration(outcome.kept_seconds)
    if outcome.resumable:
        how = {
            RunStatus.paused: "paused",
            RunStatus.model_failed: f"the model failed, and the sandbox waits for {time}",
        }.get(outcome.run.status, "cut off")
        screen.line(f"{how}; go on with: gamebox runs resume {run}", "yellow")
        screen.line(f"or end its sandbox, and forget it: gamebox runs rm {run}", "yellow")
        if outcome.asked_to_keep:
            screen.line(f"look into it with gamebox shell {outcome.sandbox}", "yellow")
    elif outcome.diff is None:
        _tell_refusal(outcome, screen)
        screen.line("what it changed could not be brought back, and its sandbox is kept:", "yellow")
        screen.line(f"look into it with gamebox run --in run-{run} -- ls, end it with gamebox rm run-{run}", "yellow")
    else:
        screen.line(f"its sandbox {outcome.sandbox} is kept until nobody has used it for {time}:", "yellow")
        screen.line(
            f"look into it with gamebox shell {outcome.sandbox}, end it with gamebox rm {outcome.sandbox}", "yellow"
        )


def _tell_changes(outcome: Outcome, screen: Screen) -> None:
    if outcome.interrupted:
        screen.line("interrupted; the sandbox is gone and nothing was written back", "yellow")
    elif outcome.refused is not None:
        _tell_refusal(outcome, screen)
    elif outcome.diff is None:
        screen.line("no diff: the sandbox could not be read any more", "red")
    elif outcome.applied:
        screen.line(f"{files(outcome.changes)} written back", "green")
    else:
        screen.line(f"{files(outcome.changes)} changed")


def _tell_refusal(outcome: Outcome, screen: Screen) -> None:
    if outcome.refused is not None:
        screen.line(f"error: {outcome.refused.message} ({outcome.refused.code.value})", "red")
        screen.line(f"hint: {outcome.refused.hint}")


def _tell_result(outcome: Outcome, screen: Screen) -> None:
    result: Any = outcome.run.result
    if isinstance(result, dict) and isinstance(result.get("summary"), str):
        screen.line(f"\n{result['summary']}")
    elif isinstance(result, dict) and outcome.run.ok:
        for name, value in result.items():
            screen.line(f"\n{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
