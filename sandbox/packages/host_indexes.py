"""Find the package indexes that this host's own tools use: the configured ones, else their defaults."""

from __future__ import annotations

import ast
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import DEVNULL, PIPE

from sandbox.frozen import dataclass

log = logging.getLogger(__name__)

ASK_SECONDS = 60.0
# pip's own order: the environment, then the command's section, then the global one.
_PIP_NAMES = (":env:.index-url", "install.index-url", "global.index-url")


@dataclass(frozen=True, slots=True)
class HostIndexes:
    """The URLs that the tools of this host install from; None for a tool that is missing or was not asked."""

    pypi: str | None
    npm: str | None


_found: dict[str, str | None] = {}


def find_host_indexes(*, pypi: bool = True, npm: bool = True) -> HostIndexes:
    """Ask pip and npm beside each other, which takes half a second, each once for a process."""
    asks_npm = npm and "npm" not in _found
    with _start_tool(["npm", "config", "get", "registry"] if asks_npm else None) as tool:
        if pypi and "pypi" not in _found:
            _found["pypi"] = _find_pypi_index()
        if asks_npm:
            _found["npm"] = (_wait_for(tool) or "").strip() or None
    return HostIndexes(_found["pypi"] if pypi else None, _found["npm"] if npm else None)


def _find_pypi_index() -> str | None:
    for pip in ([sys.executable, "-m", "pip"], ["pip"]):
        configured = _run_tool([*pip, "config", "list"])
        if configured is not None:
            return configured_index(configured) or default_index(_run_tool([*pip, "install", "--help"]) or "")
    return None


def configured_index(configured: str) -> str | None:
    """Return the index in the output of ``pip config list``, or None if it sets none."""
    found = {}
    for line in configured.splitlines():
        name, _, value = line.partition("=")
        try:
            found[name] = str(ast.literal_eval(value))
        except (ValueError, SyntaxError):
            continue
    return next((found[name] for name in _PIP_NAMES if found.get(name)), None)


def default_index(help_text: str) -> str | None:
    """Return the default index in the output of ``pip install --help``, or None."""
    match = re.search(r"--index-url .*?\(default:?\s+(https?://[^\s)]+)\)", help_text, re.DOTALL)
    return match.group(1) if match else None


def _run_tool(argv: list[str]) -> str | None:
    with _start_tool(argv) as tool:
        return _wait_for(tool)


@contextmanager
def _start_tool(argv: list[str] | None) -> Iterator[subprocess.Popen[str] | None]:
    """Start it, and kill it with its process group if it has not answered: a Ctrl-C that comes meanwhile does not wait for it."""
    environ = {**os.environ, "COLUMNS": "500", "NO_COLOR": "1"}  # so that no URL is wrapped
    tool = None
    if argv is not None:
        try:
            tool = subprocess.Popen(
                argv, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, text=True, errors="replace", env=environ,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            log.debug("%s did not say which index it uses: %s", argv[0], error)
    try:
        yield tool
    finally:
        if tool is not None and tool.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(tool.pid, signal.SIGKILL)
            if tool.stdout is not None:  # others may hold its end
                tool.stdout.close()
            tool.wait()


def _wait_for(tool: subprocess.Popen[str] | None) -> str | None:
    """Return what the tool printed, or None if it failed or was not there."""
    if tool is None:
        return None
    try:
        output, _ = tool.communicate(timeout=ASK_SECONDS)
    except subprocess.TimeoutExpired as error:
        log.debug("%s did not say which index it uses: %s", tool.args, error)
        return None
    return output if tool.returncode == 0 else None
