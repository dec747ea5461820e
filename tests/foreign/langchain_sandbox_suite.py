"""The sandbox suite of langchain-tests, run on the backend for deepagents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from sandbox.integrations.deepagents import GameboxBackend


class TestGamebox(SandboxIntegrationTests):  # type: ignore[misc]  # it is installed only where it runs
    """All of it: nothing is overridden but the sandbox."""

    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[GameboxBackend]:
        with GameboxBackend() as backend:
            yield backend
