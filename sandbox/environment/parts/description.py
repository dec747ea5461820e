"""What a prompt says of a sandbox and its limits."""

from __future__ import annotations

from sandbox.backend import Description
from sandbox.limits import Limits
from sandbox.text.wording import duration, size

# Behind what a sandbox is, wherever commands run in one.
COMMANDS = "Commands run in /bin/bash where the image has it; relative paths start at the workspace."
_IN_SH = "Commands run in a plain POSIX sh: the image has no bash. Relative paths start at the workspace."
_NOWHERE = "No command text can be run: the image has no shell. Relative paths start at the workspace."


def commands_words(shell: object) -> str:
    """Return a sentence on the shell of commands, by its path as the guest gives it ("" without a shell)."""
    if shell == "":
        return _NOWHERE
    return _IN_SH if isinstance(shell, str) and shell.endswith("/sh") else COMMANDS


def limits_words(limits: Limits, found: Description) -> str:
    """Return a sentence on what the sandbox has of memory, processors and disk, and on the deadline of commands."""
    return (
        f"{limits.memory_bytes >> 20} MiB memory, {limits.cpus:g} cpus, {limits.pids} processes, "
        f"{size(found.workspace_bytes or limits.workspace_bytes)} workspace; a command may take {limits.timeout_seconds:g} s "
        f"unless timeout_seconds says otherwise{_cpu_words(limits)}."
    )


def readable_words(read_roots: tuple[str, ...]) -> str:
    """Return a sentence, with a space before it, on the folders that file tools only read; "" for none."""
    return f" File tools also read, and do not write, below {', '.join(read_roots)}." if read_roots else ""


def _cpu_words(limits: Limits) -> str:
    seconds = limits.cpu_seconds_per_command
    return "" if seconds is None else f", and {seconds:g} s of processor time"


def end_words(limits: Limits) -> str:
    """Return a sentence, with a space before it, that says when a sandbox with these limits ends by itself; "" if it never does."""
    ends = []
    if limits.lifetime_seconds is not None:
        ends.append(f"{duration(limits.lifetime_seconds)} after its start")
    if limits.idle_seconds is not None:
        ends.append(f"when nothing was done in it for {duration(limits.idle_seconds)}")
    return f" The sandbox ends by itself {' and '.join(ends)}." if ends else ""
