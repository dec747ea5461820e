"""Requests that wait for something, and that look at everything that runs."""

from __future__ import annotations

from ipaddress import ip_address
from typing import ClassVar

from pydantic import Field

from sandbox import results

from .base import Id, Request

CONDITIONS = ("port", "log", "file", "exit")


class WaitFor(Request):
    """Wait until something is so, and answer as soon as it is: give exactly one of port, log, file, exit.

    port: a server listens on that TCP port of the sandbox. log: a line of the output of the command id matches, in what it has
    printed already or prints later. file: it exists (with contains: and that text is in it). exit: the command id has ended.
    With the id of the command that is to do it, the wait ends at once when that command ends first. When timeout_seconds are
    over, the failure not_ready shows the last output.
    """

    operation: ClassVar[str] = "wait_for"
    result: ClassVar[type[results.Result]] = results.WaitForResult
    id: Id | None = Field(None, description="Id of the command that is to do it; needed with log and exit.")
    port: int | None = Field(None, ge=1, le=65535, description="TCP port that is to be open.")
    host: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="With port: address it is to be open at, if not this machine's own.",
    )
    log: str | None = Field(
        None,
        min_length=1,
        max_length=1000,
        description="Regular expression (Python's) that a line of output is to match.",
    )
    literal: bool = Field(False, description="With log: look for it as plain text.")
    offset: int = Field(0, description="With log: byte of the output to start at; from the end if negative.")
    file: str | None = Field(None, min_length=1, max_length=4096, description="Path of a file that is to exist.")
    contains: str | None = Field(
        None, min_length=1, max_length=4096, description="With file: text that is to be in the file."
    )
    exit: bool = Field(False, description="Wait for the end of the command.")
    timeout_seconds: float = Field(30, gt=0, le=86400, description="How long to wait at most.")

    def problem(self) -> str | None:
        """Why the arguments do not fit each other; None where they do."""
        given = [name for name in CONDITIONS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            return f"give exactly one of port, log, file, exit, not {' and '.join(given) or 'none'}"
        if given[0] in ("log", "exit") and self.id is None:
            return f"{given[0]} needs the id of a command"
        for name, needed in (("host", "port"), ("literal", "log"), ("offset", "log"), ("contains", "file")):
            if getattr(self, name) and needed not in given:
                return f"{name} is for {needed}"
        if self.log is not None and ("\n" in self.log or "\0" in self.log):
            return "log is matched with single lines: it can have no line end and no NUL character"
        known = self.host in (None, "localhost") or self.address() is not None
        return None if known else f"host {self.host!r} is no IP address"

    def address(self) -> str | None:
        """``host`` as an IP address; None where it is this machine itself, or none."""
        try:
            return None if self.host in (None, "localhost") else str(ip_address(str(self.host)))
        except ValueError:
            return None


class Processes(Request):
    """Show the commands of the sandbox and the processes of each as a tree: what runs, what was left behind, what it uses.

    Each process with its CPU time and load, memory, and the ports it listens on; then what the sandbox as a whole uses. Commands
    that have ended and left nothing are named shortly.
    """

    operation: ClassVar[str] = "processes"
    result: ClassVar[type[results.Result]] = results.ProcessesResult
    id: Id | None = Field(None, description="Show this command alone.")
