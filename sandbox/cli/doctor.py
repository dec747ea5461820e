"""Run ``gamebox doctor``, and print its findings: a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox.docker.doctor.doctor import Diagnosis

_COLOURS = {"enforced": "green", "partly": "yellow", "not": "red", "untested": "dim"}


def command(as_json: bool, runtime: str | None = None) -> int:
    """Run ``gamebox doctor`` with ``runtime`` or the engine's default one.

    Returns the exit code: 0 if everything is enforced, else 1. Raises what ``examine`` raises.
    """
    from sandbox.docker.doctor.doctor import examine

    diagnosis = examine(_show_progress if sys.stderr.isatty() else _ignore, runtime)
    if as_json:
        sys.stdout.write(json.dumps(diagnosis.to_dict(), ensure_ascii=False) + "\n")
    else:
        show(diagnosis)
    return diagnosis.exit_code


def _show_progress(line: str) -> None:
    sys.stderr.write(f"\r\033[K{line}\r")
    sys.stderr.flush()


def _ignore(line: str) -> None:
    """Report nothing: progress is for a terminal."""


def show(diagnosis: Diagnosis) -> None:
    """Print the diagnosis on standard output."""
    if sys.stdout.isatty():
        _table(diagnosis)
    else:
        sys.stdout.write("\n".join(lines(diagnosis)) + "\n")


def facts(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Return facts about the engine as (label, value)."""
    engine = diagnosis.engine
    return [
        ("engine", f"{engine.version} (API {engine.api_version}) at {engine.address}{', rootless' * engine.rootless}"),
        ("system", f"{engine.operating_system}, {engine.architecture}"),
        ("kernel", f"{engine.kernel}{'' if engine.same_kernel else ', not the kernel of this host'}"),
        ("cgroups", f"version {engine.cgroup_version}, driver {engine.cgroup_driver}"),
        ("storage", engine.storage_driver),
        ("runtimes", f"{', '.join(engine.runtimes)}{f'; tried with {diagnosis.runtime}' if diagnosis.runtime else ''}"),
        ("security", ", ".join(engine.security) or "none"),
    ]


def lines(diagnosis: Diagnosis) -> list[str]:
    """Return plain lines: one for each fact, promise and hint."""
    printed = [f"{label:<9} {value}" for label, value in facts(diagnosis)]
    for finding in diagnosis.findings:
        printed.append(f"{finding.state:<9} {finding.promise}: {finding.how}")
        if finding.hint:
            printed.append(f"{'':<9} hint: {finding.hint}")
    printed.append(summary(diagnosis))
    return printed


def summary(diagnosis: Diagnosis) -> str:
    """Return how many of the promises hold."""
    states = [finding.state for finding in diagnosis.findings]
    counts = ", ".join(f"{states.count(state)} {state}" for state in _COLOURS if state != "untested" or state in states)
    return f"{len(states)} promises: {counts}"


def _table(diagnosis: Diagnosis) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in ("promise", "", "what was seen"):
        table.add_column(column)
    for finding in diagnosis.findings:
        seen = Text(finding.how)
        if finding.hint:
            seen.append(f"\n{finding.hint}", "dim")
        table.add_row(finding.promise, Text(finding.state, _COLOURS[finding.state]), seen)
    console = Console(highlight=False)
    for label, value in facts(diagnosis):
        console.print(Text().append(f"{label:<9} ", "bold").append(value))
    console.print()
    console.print(table)
    console.print(f"\n{summary(diagnosis)}")
