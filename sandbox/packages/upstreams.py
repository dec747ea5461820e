"""Which package indexes this host uses, as its own tools say: their configuration, else what is built into them."""

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
def pypi_of_host() -> str | None:
    """The index that pip on this host installs from; None where there is no pip."""
    for pip in ([sys.executable, "-m", "pip"], ["pip"]):
        configured = _said([*pip, "config", "list"])
        if configured is None:
            continue
        return index_of(configured) or built_in(_said([*pip, "install", "--help"]) or "")
    return None


@functools.cache
def npm_of_host() -> str | None:
    """The registry that npm on this host installs from; None where there is no npm."""
    said = _said(["npm", "config", "get", "registry"])
    return None if said is None else said.strip() or None


def index_of(configured: str) -> str | None:
    """The index in what ``pip config list`` printed; None where none is set."""
    found = {}
    for line in configured.splitlines():
        name, _, value = line.partition("=")
        try:
            found[name] = str(ast.literal_eval(value))
        except (ValueError, SyntaxError):
            continue
    return next((found[name] for name in _PIP_NAMES if found.get(name)), None)


def built_in(helped: str) -> str | None:
    """The index that ``pip install --help`` names as the default."""
    match = re.search(r"--index-url .*?\(default:?\s+(https?://[^\s)]+)\)", helped, re.DOTALL)
    return match.group(1) if match else None


def _said(argv: list[str]) -> str | None:
    environ = {**os.environ, "COLUMNS": "500", "NO_COLOR": "1"}  # so that no URL is cut in two
    try:
        asked = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", env=environ, timeout=ASK_SECONDS, check=False
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        log.debug("%s did not say which index it uses: %s", argv[0], error)
        return None
    return asked.stdout if asked.returncode == 0 else None
