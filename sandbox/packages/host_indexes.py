"""Find the package indexes that this host's own tools use: the configured ones, else their defaults."""

from __future__ import annotations

import ast
import functools
import logging
import os
import re
import subprocess
import sys

log = logging.getLogger(__name__)

ASK_SECONDS = 60.0
# pip's own order: the environment, then the command's section, then the global one.
_PIP_NAMES = (":env:.index-url", "install.index-url", "global.index-url")


@functools.cache
def find_pypi_index() -> str | None:
    """Return the index that pip on this host installs from, or None without pip."""
    for pip in ([sys.executable, "-m", "pip"], ["pip"]):
        configured = _run_tool([*pip, "config", "list"])
        if configured is None:
            continue
        return configured_index(configured) or default_index(_run_tool([*pip, "install", "--help"]) or "")
    return None


@functools.cache
def find_npm_registry() -> str | None:
    """Return the registry that npm on this host installs from, or None without npm."""
    output = _run_tool(["npm", "config", "get", "registry"])
    return None if output is None else output.strip() or None


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
    environ = {**os.environ, "COLUMNS": "500", "NO_COLOR": "1"}  # so that no URL is wrapped
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", env=environ, timeout=ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.debug("%s did not say which index it uses: %s", argv[0], error)
        return None
    return done.stdout if done.returncode == 0 else None
