"""A program that uses a sandbox, or a client of a service, does not load what only the service, a terminal or a tunnel needs."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["sandbox", "sandbox.client.environment", "sandbox.docker.environment", "agent"])
def test_no_web_framework_is_loaded(module: str) -> None:
    heavy = {"fastapi", "uvicorn", "starlette", "pydantic_settings", "cryptography"}
    show = f"import sys, {module}; print({heavy!r} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_a_service_starts_without_the_sdk_of_mcp() -> None:
    """Importing it takes 0.4 s of processor time, as long as all the rest, and 17 MB. The first request to /mcp does it."""
    show = "import sys, sandbox.service.server, sandbox.service.app; print({'mcp', 'mcp_types'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True).stdout == "set()\n"
