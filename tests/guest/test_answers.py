"""How long a reply may be, and what takes the place of one that is longer."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox.guest.loop.answer_sizes import Answers
from sandbox.guest.protocol import wire


@pytest.mark.parametrize("limit", [100_000, None, True, -1, "x", 1 << 40])
def test_the_limit_that_the_request_carried(limit: Any) -> None:
    answers = Answers()
    most = limit if limit == 100_000 else wire.MAX_REPLY
    frame = len(wire.pack_message({"result": ""}))
    for size, fits in ((most - frame, True), (most - frame + 1, False)):
        answers.expect(1, "list", limit)
        fields, blob, data = answers.pack(1, {"result": "x" * (size - 1)}, b"y")
        assert wire.unpack_message(data + blob) == (fields, blob)
        assert (fields["result"] is not None, blob) == (fits, b"y" * fits)
        if not fits:
            told = {"size_bytes": most + 1, "limit": most}
            assert fields["fault"] == {"code": "response_too_large", "effects": "none", "fields": told}
    assert not answers._expected


def test_of_a_change_nothing_is_known() -> None:
    answers = Answers()
    answers.expect(1, "run", 10)
    assert answers.pack(1, {"result": "x" * 10}, b"")[0]["fault"]["effects"] == "unknown"


def test_a_number_that_json_does_not_have_is_a_mistake_of_this_reply_alone() -> None:
    fields, _, data = Answers().pack(1, {"result": float("inf")}, b"")
    assert fields["fault"]["code"] == "io_error"
    assert wire.unpack_message(data)[0] == fields
