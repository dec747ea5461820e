"""The environments that have to keep the contract, and what each can do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from sandbox import DockerEnvironment, FakeEnvironment, Limits, LocalEnvironment, RemoteEnvironment
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.testing import FakeRun, Ran
from tests.servers.gamebox_service import shared_service

from . import images

MIB = 1 << 20
# Small, so that every bound is reached quickly.
LIMITS = Limits(
    memory_bytes=512 * MIB, read_bytes=64 << 10, write_bytes=1 * MIB, transfer_bytes=8 * MIB, spill_bytes=1 * MIB,
    timeout_seconds=60, background_commands=8, max_timeout_seconds=3600,
)  # fmt: skip

# commands: command text is answered · shell: it is really carried out, by a POSIX shell with the programs of busybox beside it ·
# bash, python: they are in the image · debian: what only its essential packages have (flock, pgrep, printenv, GNU's touch)
# isolated: the user is not root and the host out of reach · forwards: its ports can lead to this host
COMMANDS, SHELL, ISOLATED, FORWARDS = "commands", "shell", "isolated", "forwards"
BASH, PYTHON, DEBIAN = "bash", "python", "debian"
WHOLE = frozenset({COMMANDS, SHELL, BASH, PYTHON, DEBIAN})


def _counted(run: FakeRun) -> str | Ran:
    """Commands whose output follows from what they are given."""
    if run.command == "cat":
        return Ran(stdout=run.stdin)
    if run.command == 'printf %s "$GREETING"':
        return run.env.get("GREETING", "")
    if run.command == "pwd":
        return run.cwd + "\n"
    count = re.fullmatch(r"head -c (\d+) /dev/zero \| tr '\\0' x", run.command)
    return "x" * int(count[1]) if count else Ran(exit_code=127)


# What the fake is told of the commands in test_run.py: nothing of its own can carry out a command.
TABLE: dict[str | re.Pattern[str], Any] = {
    "printf 'hello\\n'": "hello\n",
    "printf hello": "hello",
    "printf hello there": "hello there",
    "printf out; printf err >&2; exit 3": Ran(stdout="out", stderr="err", exit_code=3),
    "printf out; printf err >&2": Ran(stdout="out", stderr="err"),
    "kill -9 $$": Ran(signal="SIGKILL"),
    "exit 7": Ran(exit_code=7),
    "printf early; sleep 30": Ran(stdout="early", seconds=30),
    "printf '\\377\\000\\nmore'": b"\xff\x00\nmore",
    "true": "",
    re.compile(r".*"): _counted,
}


def remote() -> SandboxedEnvironment:
    """A sandbox of a service: it has the methods of the others, and is no subclass of theirs."""
    service = shared_service()
    return cast("SandboxedEnvironment", RemoteEnvironment(url=service.url, api_key=service.key, limits=LIMITS))


@dataclass(frozen=True, slots=True)
class Backend:
    name: str
    make: Callable[[], SandboxedEnvironment]
    capabilities: frozenset[str]
    needs_engine: bool = False
    extra_image: bool = False


def _in_image(name: str, make: Callable[[], str], *capabilities: str) -> Backend:
    def started() -> SandboxedEnvironment:
        return DockerEnvironment(make(), limits=LIMITS)

    return Backend(name, started, frozenset({ISOLATED, FORWARDS, *capabilities}), needs_engine=True, extra_image=True)


BACKENDS = (
    Backend("docker", lambda: DockerEnvironment(limits=LIMITS), WHOLE | {ISOLATED, FORWARDS}, needs_engine=True),
    Backend("remote", remote, WHOLE | {ISOLATED, FORWARDS}, needs_engine=True),
    Backend("local", lambda: LocalEnvironment(limits=LIMITS), WHOLE | {FORWARDS}),
    Backend("fake", lambda: FakeEnvironment(commands=TABLE, limits=LIMITS), frozenset({COMMANDS})),
    _in_image("musl", images.musl, COMMANDS, SHELL),
    _in_image("busybox", images.busybox, COMMANDS, SHELL),
    _in_image("static", images.static),
)


def folder_of(env: SandboxedEnvironment) -> str:
    """Absolute path of the workspace."""
    return env.workspace if isinstance(env, LocalEnvironment) else "/workspace"


