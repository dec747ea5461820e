"""A client of a service loads nothing of an engine, a command line or a web framework."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"docker", "requests", "tenacity", "typer", "fastapi", "starlette", "litellm", "pyte", "agent"}


def test_a_client_needs_httpx_and_pydantic() -> None:
    show = f"import sys; from sandbox import RemoteEnvironment, AsyncRemoteEnvironment; print({HEAVY} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True).stdout == "set()\n"
