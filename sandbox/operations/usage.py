"""The request about the sandbox as a whole."""

from __future__ import annotations

from typing import ClassVar

from sandbox import results

from .base import Request


class Usage(Request):
    """Show what is left of the sandbox: memory, disk space, processes, time; and which commands run."""

    operation: ClassVar[str] = "usage"
    result: ClassVar[type[results.Result]] = results.UsageResult
