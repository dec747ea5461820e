"""Builds at once share the room of a quota."""

from __future__ import annotations

from sandbox.docker.builds.room import Room


def test_no_more_is_taken_than_there_is() -> None:
    room = Room(10)
    assert room.take(6)
    assert not room.take(5)
    assert (room.left, room.taken) == (4, 6)


def test_what_was_taken_while_it_was_measured_counts() -> None:
    room = Room(10)
    room.take(4)
    before = room.taken
    room.take(3)
    room.measured(6, before)
    assert room.left == 3
    room.measured(2, before)
    assert room.left == 0
    assert not room.take(1)
