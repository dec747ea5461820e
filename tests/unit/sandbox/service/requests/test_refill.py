"""Output of a run that another service sent has the streams that the sandbox knows."""

from __future__ import annotations

from sandbox.guest.commands.output import MOST_TOLD_CHANGES
from sandbox.service.requests.refill import MOST_STREAMS, by_stream


def test_the_parts_of_output_have_their_streams() -> None:
    assert [*by_stream(b"abcdef", [(1, 2), (2, 1), (1, 3)])] == [("stdout", b"ab"), ("stderr", b"c"), ("stdout", b"def")]
    assert [*by_stream(b"abc", [(2, 1)])] == [("stderr", b"a"), ("output", b"bc")]
    assert [*by_stream(b"abc", [])] == [("output", b"abc")]  # of a sandbox that an older version has made
    assert [*by_stream(b"a", [(2, 5)])] == [("stderr", b"a")]


def test_what_one_answer_could_not_tell_is_asked_for_again() -> None:
    assert MOST_STREAMS == MOST_TOLD_CHANGES
    found = [*by_stream(b"ab" * 1000, [(1 + n % 2, 1) for n in range(MOST_STREAMS)])]
    assert b"".join(part for _, part in found) == b"ab" * (MOST_STREAMS // 2)
