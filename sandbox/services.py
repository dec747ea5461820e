"""Ready-made side services: ``DockerEnvironment(services={"db": services.postgres(), "cache": services.redis()})``.

Their images come with Gamebox and are built on first use. They run as uid 1000 of their own sandbox, keep nothing, and need
no password: only the sandbox that they belong to can reach them.
"""

from __future__ import annotations

import re

from sandbox.network.services.side_service import Ready, SideService

from .errors import ErrorCode, SandboxError
from .limits import Limits

POSTGRES_PORT, REDIS_PORT = 5432, 6379


def postgres(*, database: str = "postgres", limits: Limits | None = None) -> SideService:
    """Return a PostgreSQL server with an empty ``database``. Connect as its superuser, ``postgres``.

    With the name ``db`` in ``services``: ``psql -h db -U postgres``, or ``postgresql://postgres@db/DATABASE``. Raises SandboxError
    ``invalid_configuration`` for a database whose name is not lower-case letters, digits and ``_``.
    """
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", database):
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"{database!r:.80} cannot be the name of the database.",
            "Use lower-case letters, digits and _, at most 63, as in postgres(database='orders').",
        )
    return SideService(
        image="gamebox/postgres",
        command=["gamebox-postgres", "serve"],
        port=POSTGRES_PORT,
        ready=Ready(command=f"pg_isready --quiet --host=127.0.0.1 --dbname={database}"),
        env={"GAMEBOX_DATABASE": database},
        user="agent",
        limits=limits,
    )


def redis(*, limits: Limits | None = None) -> SideService:
    """Return a Redis server that keeps its data in memory only.

    With the name ``cache`` in ``services``: ``redis://cache:6379/0``.
    """
    return SideService(
        image="gamebox/redis",
        command=["redis-server", "--bind", "127.0.0.1", "--port", str(REDIS_PORT), "--save", "", "--dir", "/tmp"],  # noqa: S108
        port=REDIS_PORT,
        ready=Ready(command="redis-cli ping | grep -q PONG"),
        user="agent",
        limits=limits,
    )
