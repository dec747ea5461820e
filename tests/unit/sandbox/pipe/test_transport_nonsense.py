"""The host's end of the pipe against a guest that sends too much, torn frames, or nonsense."""

from __future__ import annotations

import threading

import pytest

from sandbox.errors import OperationError, SandboxUnavailableError
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.wire import Kind
from sandbox.testing import GuestRequest, ScriptedGuest

from .talking import Script, eventually, fails, talk


def _foreign_nonce(guest: ScriptedGuest, request: GuestRequest) -> None:
    guest.frame(Kind.REPLY, request.channel, wire.pack_message({}), nonce=b"otherone")


def _repeated(guest: ScriptedGuest, request: GuestRequest) -> None:
    guest.frame(Kind.PONG, 0, skip=-1)


def _skipped(guest: ScriptedGuest, request: GuestRequest) -> None:
    guest.frame(Kind.PONG, 0, skip=1)


def _beyond_credit(guest: ScriptedGuest, request: GuestRequest) -> None:
    for _ in range(2 * wire.WINDOW // wire.MAX_PAYLOAD):
        guest.frame(Kind.DATA, request.channel, bytes(wire.MAX_PAYLOAD))


def _oversize(guest: ScriptedGuest, request: GuestRequest) -> None:
    guest.raw(
        wire.HEADER.pack(guest.nonce, guest.sequence, Kind.REPLY, b"\0\0\0", request.channel, wire.MAX_PAYLOAD + 1)
    )


def _again_queued(guest: ScriptedGuest, request: GuestRequest) -> None:
    guest.notice(request, "queued")
    guest.notice(request, "queued")


def test_a_bug_of_the_hosts_own_reader_is_not_blamed_on_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was reported as a protocol violation of the guest (review of the sandbox, 5.5)."""

    def broken(*_: object) -> None:
        raise KeyError("channel")

    with talk(lambda guest, request: guest.reply(request, {})) as (host, _guest):
        monkeypatch.setattr(host._reading, "_take", broken)
        fails(host, "host_failed", "Gamebox failed while it read an answer", "KeyError: 'channel'", "This is a bug of Gamebox")


NONSENSE: dict[str, tuple[Script, str]] = {
    "garbage": (lambda g, r: g.raw(b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"), "foreign nonce"),
    "foreign nonce": (_foreign_nonce, "foreign nonce"),
    "repeated frame": (_repeated, "was due"),
    "skipped frame": (_skipped, "was due"),
    "unknown kind": (lambda g, r: g.frame(77, r.channel), "unknown frame kind 77"),
    "kind of the host": (lambda g, r: g.frame(Kind.REQUEST, r.channel), "kind 2"),
    "frame too long": (_oversize, "frame of 262145 bytes"),
    "stream beyond its credit": (_beyond_credit, "beyond its credit"),
    "empty parts": (lambda g, r: g.frame(Kind.PART, r.channel), "nothing asked for"),
    "empty pieces": (lambda g, r: g.frame(Kind.DATA, r.channel), "nothing asked for"),
    "credit unasked": (lambda g, r: g.frame(Kind.CREDIT, r.channel, b"\0\0\0\1"), "nothing asked for"),
    "no JSON": (lambda g, r: g.frame(Kind.REPLY, r.channel, b"\0\0\0\2{]"), "not JSON"),
    "no object": (lambda g, r: g.frame(Kind.REPLY, r.channel, b"\0\0\0\2[]"), "not an object"),
    "deep JSON": (lambda g, r: g.frame(Kind.REPLY, r.channel, b"\0\0\xff\xff" + b"[" * 0xFFFF), "not JSON"),
    "huge number": (lambda g, r: g.frame(Kind.REPLY, r.channel, b"\0\0\x17\x70" + b"9" * 6000), "not JSON"),
    "short message": (lambda g, r: g.frame(Kind.REPLY, r.channel, b"\0"), "too short"),
    "queued twice": (_again_queued, "makes no sense"),
    "unknown notice": (lambda g, r: g.notice(r, "tea"), "makes no sense"),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_ends_the_pipe(name: str) -> None:
    script, words = NONSENSE[name]
    with talk(script) as (host, _):
        fails(host, "protocol_violation", words, sink=lambda _: eventually(lambda: host._reading.over) and None)
        fails(host, "protocol_violation")


def test_credit_for_what_was_never_sent() -> None:
    with talk(lambda g, r: g.frame(Kind.CREDIT, r.channel, b"\0\0\0\1")) as (host, _):
        fails(host, "protocol_violation", "not sent", body=[])


def test_a_stream_that_nobody_takes() -> None:
    with talk(lambda g, r: g.frame(Kind.DATA, r.channel, b"x")) as (host, _):
        fails(host, "protocol_violation", "nothing asked for")


@pytest.mark.parametrize("cut", [1, 10, 23, 24, 30])
def test_a_cut_in_the_middle_of_a_frame(cut: int) -> None:
    def script(guest: ScriptedGuest, request: GuestRequest) -> None:
        whole = wire.frame(guest.nonce, guest.sequence, Kind.REPLY, request.channel, wire.pack_message({"result": 1}))
        guest.raw(whole[:cut])
        guest.hang_up()

    with talk(script) as (host, _):
        fails(host, "pipe_broken")


def test_a_frame_in_crumbs_is_a_frame() -> None:
    def script(guest: ScriptedGuest, request: GuestRequest) -> None:
        for byte in wire.frame(
            guest.nonce, guest.sequence, Kind.REPLY, request.channel, wire.pack_message({"result": 1})
        ):
            guest.raw(bytes([byte]))

    with talk(script) as (host, _):
        assert host.request("read", {}, timeout_seconds=60)[0] == {"result": 1}


def test_a_guest_that_takes_nothing_for_a_while() -> None:
    """A request's deadline holds while it is being sent, and giving up in mid-frame leaves the pipe whole."""
    release = threading.Event()

    def script(guest: ScriptedGuest, request: GuestRequest) -> None:
        if request.args.get("stall"):
            release.wait(60)
        else:
            guest.reply(request, {"late": True})

    with talk(script) as (host, _):
        with pytest.raises(SandboxUnavailableError):
            host.request("read", {"stall": True}, timeout_seconds=0.01)
        fails(host, "no_answer", blob=bytes(16 << 20), timeout_seconds=0.1)
        fails(host, "no_answer", timeout_seconds=0.1)
        release.set()
        assert host.request("read", {}, timeout_seconds=60)[0]["result"] == {"late": True}


def test_a_reply_without_end_is_the_end_of_its_request_alone() -> None:
    def script(guest: ScriptedGuest, request: GuestRequest) -> None:
        for _ in range(80 if request.operation == "list" else 0):
            guest.frame(Kind.PART, request.channel, bytes(wire.MAX_PAYLOAD))
        guest.reply(request, {})

    with talk(script) as (host, _):
        for _ in range(2):
            with pytest.raises(OperationError, match=r"the limit is 4\.0 MiB") as caught:
                host.request("list", {}, timeout_seconds=60)
            assert (caught.value.code, caught.value.effects) == ("response_too_large", "unknown")
        assert host.request("read", {}, timeout_seconds=60)[0]["result"] == {}
        assert not host._assembler._parts
