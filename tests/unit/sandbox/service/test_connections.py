"""The connections that stay open: how many there may be, and who ends them."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from sandbox.service.connections import KEY_GONE, RESTART, Ending, OpenConnection, OpenConnections
from sandbox.service.http.problems import Problem
from sandbox.service.ports.access import public_key


def test_a_sandbox_has_only_so_many() -> None:
    every = OpenConnections(2)
    with every.open(OpenConnection("a", "t", None, print)), every.open(OpenConnection("b", "t", None, print)):
        with every.open(OpenConnection("a", "t", None, print)):
            with pytest.raises(Problem, match="2 connections to this sandbox") as caught:
                every.open(OpenConnection("a", "t", None, print)).__enter__()
            assert caught.value.status == 429
            assert len(every) == 3
        with every.open(OpenConnection("a", "t", None, print)):
            pass
    assert len(every) == 0


def test_those_with_a_key_end_with_it() -> None:
    every, ended = OpenConnections(9), []
    with ExitStack() as stack:
        for sandbox, key in (("a", "k1"), ("b", "k1"), ("a", "k2")):
            connection = OpenConnection(sandbox, "t", key, lambda ending, who=(sandbox, key): ended.append((who, ending)))  # type: ignore[misc]
            stack.enter_context(every.open(connection))
        every.end(KEY_GONE, key="k1", sandbox="a")
        assert ended == [(("a", "k1"), KEY_GONE)]
        every.end(KEY_GONE, key="k1")
        assert {who for who, _ in ended} == {("a", "k1"), ("b", "k1")}


def test_those_whose_key_has_expired_end_and_those_of_public_ports_go_on() -> None:
    every, ended = OpenConnections(9), []
    with ExitStack() as stack:
        for key in ("k1", "k2", public_key(8000), None):
            connection = OpenConnection("a", "t", key, lambda ending, who=key: ended.append((who, ending)))  # type: ignore[misc]
            stack.enter_context(every.open(connection))
        every.end_expired(lambda key: key == "k1")
    assert ended == [("k2", KEY_GONE)]


def test_a_service_that_ends_waits_for_requests_alone() -> None:
    async def drained() -> list[tuple[str, Ending]]:
        every, ended = OpenConnections(9), []

        async def hold(name: str, *, is_request: bool) -> None:
            over = asyncio.Event()

            def end(ending: Ending) -> None:
                ended.append((name, ending))
                over.set()

            with every.open(OpenConnection("a", "t", None, end, is_request=is_request)):
                await over.wait()

        tasks = [asyncio.ensure_future(hold("terminal", is_request=False)), asyncio.ensure_future(hold("request", is_request=True))]
        await asyncio.sleep(0)
        await every.drain(0.2)
        await asyncio.gather(*tasks)
        return ended

    assert asyncio.run(drained()) == [("terminal", RESTART), ("request", RESTART)]
