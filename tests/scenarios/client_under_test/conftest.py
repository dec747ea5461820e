"""A PostgreSQL server for each worker, a database for each test, the tool under test in a sandbox of each test's own."""

import os
from typing import Any

import pytest

from sandbox import DockerEnvironment, Ready, SideService
from sandbox.docker.services.running_service import RunningService

IMAGE = os.environ["LEDGER_IMAGE"]  # with PostgreSQL, started by its CMD, and with Python and psycopg2


@pytest.fixture(scope="session")
def sandbox_options() -> dict[str, Any]:
    dsn = "host=db user=postgres password=secret dbname=test"
    return {"image": IMAGE, "workspace": "tool", "env": {"LEDGER_DSN": dsn}}


@pytest.fixture(scope="session")
def sandbox_shared_services() -> dict[str, SideService]:
    return {"db": SideService(image=IMAGE, port=5432, ready=Ready(command="pg_isready -h 127.0.0.1"))}


@pytest.fixture
def sandbox(sandbox: DockerEnvironment, sandbox_services: dict[str, RunningService]) -> DockerEnvironment:
    """With an empty database."""
    ran = sandbox_services["db"].environment.run("dropdb --if-exists --force test && createdb test", session=None)
    assert ran.unwrap().exit_code == 0, ran.to_text()
    return sandbox
