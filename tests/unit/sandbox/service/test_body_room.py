"""The memory that large bodies take together: no tenant has all of it, however many it sends."""

from __future__ import annotations

import pytest

from sandbox.errors import ErrorCode
from sandbox.service.http.payloads.body_room import BodyRoom
from sandbox.service.http.problems import Problem


def test_a_tenant_leaves_room_for_others() -> None:
    room = BodyRoom(100)
    for _ in range(5):
        room.take(10, "greedy")
    with pytest.raises(Problem) as caught:
        room.take(10, "greedy")
    assert (caught.value.status, caught.value.code) == (503, ErrorCode.capacity)
    room.take(20, "other")
    room.give_back(20, "greedy")
    room.take(10, "other")
    room.give_back(30, "other")
    room.give_back(30, "greedy")
    room.take(50, "third")


def test_there_is_no_more_than_there_is() -> None:
    with pytest.raises(Problem):
        BodyRoom(100).take(101, "one")
