"""Downloads and signatures of the dialect of E2B."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random

import pytest

from sandbox.service.wire.e2b.envd import signatures
from sandbox.service.wire.e2b.envd.files import is_zipped
from sandbox.service.wire.e2b.envd.signatures import AT_ONCE, Signed

TEXT, NOISE = b"all work and no play " * 500, random.Random(1).randbytes(8000)


@pytest.mark.parametrize(
    ("accepted", "piece", "wanted"),
    [
        ("gzip", TEXT, True), ("gzip", NOISE, True), ("gzip", b"x", True), ("gzip, deflate, br, zstd", TEXT, True),
        ("gzip, deflate", NOISE, False), ("gzip, deflate", b"xxxx", False), ("", TEXT, False), ("br", TEXT, False),
        ("gzip;q=0, *", TEXT, False), ("gzip;q=0.5, identity", TEXT, False), ("identity;q=0, gzip;q=0.1, br", NOISE, True),
        ("*", TEXT, True), ("GZIP ; q=1.0, br", TEXT, True), ("gzip;q=x, br", TEXT, True),
    ],
)  # fmt: skip
def test_files_are_compressed_for_those_who_accept_it_if_it_helps(accepted: str, piece: bytes, wanted: bool) -> None:
    assert is_zipped(accepted, len(piece), piece) is wanted


def _signed(token: bytes) -> Signed:
    digest = hashlib.sha256(b"path:read::" + token + b":9").digest()
    found = Signed.read("path:read::", ":9", "v1_" + base64.b64encode(digest).decode().rstrip("="))
    assert found is not None
    return found


def test_others_have_their_turn_while_the_signer_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "MOST_TRIED", 20 * AT_ONCE)
    tokens = [(number, f"token {number}".encode()) for number in range(30 * AT_ONCE)]

    async def work() -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        task = asyncio.create_task(other())
        assert await _signed(b"token 4000").signer(tokens) == 4000
        assert turns >= 4000 // AT_ONCE - 1
        assert await _signed(b"token 6000").signer(tokens) is None, "no more than so many are tried"
        task.cancel()

    asyncio.run(work())


@pytest.mark.parametrize("signature", ["", "v1_", "v2_" + "A" * 43, "v1_" + "A" * 42, "v1_" + "é" * 43, "A" * 43])
def test_what_nobody_can_have_signed_is_not_looked_for(signature: str) -> None:
    assert Signed.read("a", "", signature) is None
