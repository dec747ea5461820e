"""Secrets of commands: they are there as variables, and in nothing that is answered."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from agent import Action, ActionRegistry, Agent, JsonLanguage, sandbox_tools
from sandbox import AsyncEnvironment
from sandbox.environment.parts.secrets import Secrets
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.errors import SandboxError
from sandbox.pipe.watching import Watch

from .checks import done, refused

VALUE = "s3cr3t/v+lue-0123456789"
_numbers = itertools.count(1)


@pytest.fixture
def token(env: SandboxedEnvironment) -> Iterator[str]:
    """The name of a secret that all commands have; forgotten afterwards, for environments are shared."""
    name = f"TOKEN{next(_numbers)}"
    env.secret(name, VALUE)
    yield name
    vars(env)["hidden"] = Secrets()


def test_a_value_that_is_too_short_is_refused(env: SandboxedEnvironment) -> None:
    with pytest.raises(SandboxError, match="fewer than 8 characters"):
        env.secret("TOKEN", "short")


def test_what_a_file_says_is_masked_and_a_download_is_not(env: SandboxedEnvironment, folder: str, token: str) -> None:
    done(env.write(f"{folder}/{VALUE.replace('/', '')}", f"a {VALUE} b"))
    done(env.write(f"{folder}/x", f"one\na {VALUE} b\n"))
    assert done(env.read(f"{folder}/x")).content == f"one\na ***{token}*** b\n"
    assert VALUE not in done(env.search("s3cr3t", folder)).to_text()
    assert done(env.download(f"{folder}/x")).content == f"one\na {VALUE} b\n".encode()


def test_a_failure_is_masked(env: SandboxedEnvironment, token: str) -> None:
    failure = refused(env.read(VALUE.replace("+", "/../+")), "path_not_found")
    assert VALUE not in str(failure.to_dict())
    assert VALUE not in refused(env.read(VALUE), "path_not_found").error


def test_a_secret_that_is_none_is_refused(env: SandboxedEnvironment, token: str) -> None:
    refused(env.run("true", secrets=["OTHER"]), "invalid_arguments", "'OTHER'", token)


def test_the_prompt_names_it(env: SandboxedEnvironment, token: str) -> None:
    said = env.describe()
    assert token in said["secrets"]
    assert VALUE not in str(said)


@pytest.mark.needs("shell")
def test_commands_have_it_and_their_output_has_not(env: SandboxedEnvironment, token: str) -> None:
    ran = done(
        env.run(f'printf %s "${token}" | wc -c; echo "${token}"; echo "${token}" >&2; printf %s "${token}" | base64')
    )
    assert ran.stdout == f"{len(VALUE)}\n***{token}***\n***{token}***\n"
    assert ran.stderr == f"***{token}***\n"
    assert VALUE.encode() not in ran.stdout_bytes + ran.stderr_bytes
    assert done(env.run(f"echo ${token}", argv=None, env={token: "mine"})).stdout == "mine\n"


@pytest.mark.needs("shell", "debian")
def test_it_is_there_in_every_session_and_not_kept_by_one(env: SandboxedEnvironment, token: str) -> None:
    done(env.run(f"unset {token}", session="s1"))
    assert done(env.run(f"echo ${token}", session="s1")).stdout == f"***{token}***\n"
    assert done(env.run(argv=["printenv", token], session=None)).stdout == f"***{token}***\n"
    done(env.end_session("s1"))


@pytest.mark.needs("shell")
def test_only_who_asks_for_it_has_it(env: SandboxedEnvironment, token: str) -> None:
    env.secret("ON_REQUEST", "only-who-asks-for-it", always=False)
    assert done(env.run('echo "<$ON_REQUEST>"')).stdout == "<>\n"
    assert done(env.run('echo "<$ON_REQUEST>"', secrets=["ON_REQUEST"])).stdout == "<***ON_REQUEST***>\n"


@pytest.mark.needs("shell", "bash")
def test_streams_are_masked_where_a_secret_comes_in_pieces(env: SandboxedEnvironment, token: str) -> None:
    told: list[str] = []
    raw: list[bytes] = []
    slowly = f'printf "a %s" "${{{token}:0:6}}"; sleep 0.2; printf "%s b\\n" "${{{token}:6}}"; echo ok; printf s3cr3'
    watch = Watch(on_output=lambda _, text: told.append(text), on_bytes=lambda _, data: raw.append(data))
    ran = done(env.execute("run", {"command": f"bash -c '{slowly}'"}, watch=watch))
    assert ran.stdout == "".join(told) == b"".join(raw).decode() == f"a ***{token}*** b\nok\ns3cr3"


@pytest.mark.needs("shell", "python")
def test_logs_screens_and_processes_are_masked(env: SandboxedEnvironment, token: str) -> None:
    ident = done(env.run(f'echo "${token}"; exec sleep 61', background=True)).id
    done(env.wait_for(id=ident, log="TOKEN|s3cr3t"))
    assert done(env.logs(ident)).content == f"***{token}***\n"
    part = done(env.logs(ident, offset=5)).content
    assert part == f"***{token}***\n"
    done(env.kill(ident))
    shown = done(env.run(f'printf "%070d %s" 0 "${token}"; exec sleep 61', pty=True, wait_seconds=0.5))
    done(env.wait_for(id=shown.id, log="TOKEN|s3cr3t"))
    screen = done(env.screen(shown.id)).text
    assert f"***{token}***" in screen
    assert VALUE[10:] not in screen
    done(env.kill(shown.id))
    ident = done(env.run(f'python3 -c "import time; time.sleep(62)" "${token}"', background=True)).id
    refused(env.wait_for(id=ident, log="x", timeout_seconds=0.5), "not_ready")
    assert VALUE not in done(env.processes(ident)).to_text()
    done(env.kill(ident))


@pytest.mark.needs("shell")
def test_followed_output_is_masked(env: SandboxedEnvironment, token: str) -> None:
    ident = done(env.run(f'for i in 1 2 3; do echo "${token}"; sleep 0.05; done', background=True)).id
    assert "".join(chunk.text for chunk in env.follow(ident)) == f"***{token}***\n" * 3


def test_what_an_agent_does_leaves_no_trace_of_it(env: SandboxedEnvironment, folder: str, token: str) -> None:
    done(env.write(f"{folder}/x", f"a {VALUE} b"))
    leaking = Action("leak", lambda: {"told": [VALUE]}, "Tells what it knows, in a list.")
    failing = Action("fail", _fail, "Fails, and says with what.")
    calls = iter([("read", {"path": f"{folder}/x"}), ("leak", {}), ("fail", {})])

    def brain(prompt: Any) -> str:
        assert VALUE not in str(prompt)
        tool, args = next(calls)
        return json.dumps({"tool": tool, "args": args})

    agent = Agent([], JsonLanguage(), ActionRegistry([*sandbox_tools(), leaking, failing]), brain, env)
    run = agent.execute("look", max_iterations=3)
    assert [step.tool for step in run.steps] == ["read", "leak", "fail"]
    assert json.dumps(run.to_dict()).count(f"***{token}***") == 3
    assert VALUE not in json.dumps(run.to_dict())
    assert VALUE not in str(run.memory.get_memories())


def _fail() -> None:
    raise ValueError(f"no {VALUE}")


def test_with_asyncio(env: SandboxedEnvironment) -> None:
    async def given() -> None:
        aio = AsyncEnvironment(env)
        await aio.secret("LATER", "a-secret-for-later", always=False)

    asyncio.run(given())
    assert env.hidden.mask.text("a-secret-for-later") == "***LATER***"
    vars(env)["hidden"] = Secrets()
