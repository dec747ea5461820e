"""A request that is made again with its id is answered again, never carried out again."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any

import pytest

from sandbox import operations as op
from sandbox.aio import AsyncEnvironment
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.guest.loop.reply_cache import MOST_REPLIES

from .checks import done, refused

_ids = (f"request-{n}" for n in itertools.count())


def test_a_write_is_not_done_twice(env: SandboxedEnvironment, folder: str) -> None:
    ident = next(_ids)
    first = done(env.write(f"{folder}/a", "one", request_id=ident))
    done(env.write(f"{folder}/a", "other"))
    assert done(env.write(f"{folder}/a", "one", request_id=ident)) == first
    assert done(env.read(f"{folder}/a")).content == "other"


def test_a_failure_is_answered_again(env: SandboxedEnvironment, folder: str) -> None:
    ident = next(_ids)
    first = refused(env.delete(f"{folder}/none", request_id=ident), "path_not_found")
    done(env.write(f"{folder}/none", ""))
    again = refused(env.delete(f"{folder}/none", request_id=ident), "path_not_found")
    assert (again.error, again.hint) == (first.error, first.hint)
    assert done(env.list(folder)).total_entries == 1


def _changes(folder: str) -> dict[str, tuple[str, ...]]:
    """Arguments of every operation that takes an id, in an order in which each can be carried out."""
    return {
        "make_dir": (folder,), "write": (f"{folder}/a", "one"), "edit": (f"{folder}/a", "one", "two"),
        "move": (f"{folder}/a", f"{folder}/b"), "delete": (f"{folder}/b",), "run": ("printf hello",),
    }  # fmt: skip


@pytest.mark.needs("commands")
def test_every_change_takes_an_id(env: SandboxedEnvironment, folder: str) -> None:
    changes = _changes(folder)
    assert set(changes) == {name for name, kind in op.OPERATIONS.items() if issubclass(kind, op.Change)}
    for name, args in changes.items():
        ident = next(_ids)
        first = done(getattr(env, name)(*args, request_id=ident))
        assert done(getattr(env, name)(*args, request_id=ident)) == first, name


@pytest.mark.needs("commands")
def test_every_change_takes_an_id_in_a_loop(env: SandboxedEnvironment, folder: str) -> None:
    async def ask() -> None:
        environment = AsyncEnvironment(env)
        for name, args in _changes(folder).items():
            ident = next(_ids)
            first = done(await getattr(environment, name)(*args, request_id=ident))
            assert done(await getattr(environment, name)(*args, request_id=ident)) == first, name

    asyncio.run(ask())


@pytest.mark.needs("commands")
def test_a_run_is_not_done_twice(env: SandboxedEnvironment) -> None:
    ident = next(_ids)
    first = done(env.run("printf hello", request_id=ident))
    assert done(env.run("printf hello", request_id=ident)) == first
    assert done(env.run("printf hello")).id != first.id


@pytest.mark.needs("commands")
def test_an_id_that_was_used_for_something_else(env: SandboxedEnvironment, folder: str) -> None:
    ident = next(_ids)
    done(env.run("printf hello", request_id=ident))
    refused(env.run("true", request_id=ident), "invalid_arguments", ident)
    refused(env.write(f"{folder}/x", "", request_id=ident), "invalid_arguments", ident)
    refused(env.run("printf hello", stdin="x", request_id=ident), "invalid_arguments", ident)
    assert done(env.list(folder)).total_entries == 0


@pytest.mark.needs("shell")
@pytest.mark.parametrize("session", ["default", None])
def test_asked_again_while_it_runs(env: SandboxedEnvironment, folder: str, session: str | None) -> None:
    ident, answers = next(_ids), []
    command = f"echo x >> {folder}/count; until [ -e {folder}/go ]; do sleep 0.01; done; cat {folder}/count"

    def ask() -> None:
        answers.append(env.run(command, request_id=ident, session=session))

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    while not env.read(f"{folder}/count").ok:
        pass
    done(env.write(f"{folder}/go", ""))
    for asker in askers:
        asker.join()
    results: list[Any] = [done(answer) for answer in answers]
    assert [r.output for r in results] == ["x\n"] * 4
    assert len({r.id for r in results}) == 1


def test_only_so_many_answers_are_remembered_and_none_is_done_twice(env: SandboxedEnvironment, folder: str) -> None:
    ident = next(_ids)
    done(env.make_dir(folder))
    first = done(env.write(f"{folder}/a", "one", request_id=ident))
    for _ in range(MOST_REPLIES):
        done(env.write(f"{folder}/a", "other", request_id=next(_ids)))
    again = env.write(f"{folder}/a", "one", request_id=ident)
    if again.ok:  # a service remembers more than a guest
        assert again.result == first
    else:
        refused(again, "transfer_incomplete", "carried out before", effects="unknown")
    assert done(env.read(f"{folder}/a")).content == "other"


@pytest.mark.needs("shell")
def test_logs_of_a_run_by_its_request_id(env: SandboxedEnvironment) -> None:
    ident = next(_ids)
    ran = done(env.run("echo said", request_id=ident))
    logs = done(env.logs(ident))
    assert (logs.id, logs.content) == (ran.id, "said\n")
