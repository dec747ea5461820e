"""Secrets are masked in every form in which a program is likely to print them, however a text is cut."""

from __future__ import annotations

import base64
import html
import json
import urllib.parse
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox import operations as op
from sandbox.envelope import Failure, Notice, Success
from sandbox.environment.base import Environment
from sandbox.environment.parts.secrets import Secrets
from sandbox.errors import ErrorCode, SandboxError
from sandbox.network.connections import Connection, ConnectionLog
from sandbox.network.policy import Network
from sandbox.pipe.replies import notices_of
from sandbox.text.masking import Mask, MaskedStream, credentials_of, forms_of

VALUE = 'to p/s+e&c"ret-ü-0123'


def secrets(value: str = VALUE) -> Secrets:
    made = Secrets()
    made.add("TOKEN", value, True)
    return made


def mask(*values: str) -> Mask:
    return Mask({form: b"***TOKEN***" for value in values for form in forms_of(value)})


@pytest.mark.parametrize(
    "shown",
    [
        VALUE, json.dumps(VALUE)[1:-1], json.dumps(VALUE, ensure_ascii=False)[1:-1], urllib.parse.quote(VALUE),
        urllib.parse.quote(VALUE, safe=""), urllib.parse.quote_plus(VALUE), VALUE.encode().hex(), VALUE.encode().hex().upper(),
        base64.b64encode(VALUE.encode()).decode(), base64.urlsafe_b64encode(VALUE.encode()).decode(),
        base64.b64encode(f"{VALUE}\n".encode()).decode(),
        "".join(f"%{byte:02x}" for byte in VALUE.encode()), "".join(f"\\u{ord(char):04X}" for char in VALUE),
        "".join(f"&#{ord(char)};" for char in VALUE), "".join(f"&#x{ord(char):x};" for char in VALUE), html.escape(VALUE),
    ],
)  # fmt: skip
def test_every_form_is_masked_whole(shown: str) -> None:
    assert mask(VALUE).text(f"a {shown} b") == "a ***TOKEN*** b"
    assert mask(VALUE).whole(f"a {shown} b".encode()) == b"a ***TOKEN*** b"


@pytest.mark.parametrize("before", ["", "u", "us", "usr", "user:"])
def test_base64_of_a_longer_text_keeps_nothing_of_a_secret_but_its_rims(before: str) -> None:
    shown = mask(VALUE).text(base64.b64encode(f"{before}{VALUE} and more".encode()).decode())
    assert "***TOKEN***" in shown
    kept = [part for part in shown.split("***TOKEN***") if part]
    assert not any(base64.b64encode(VALUE[2:-2].encode()).decode()[4:-4] in part for part in kept)


def test_base64_in_lines_and_a_key_in_lines() -> None:
    key = "-----BEGIN KEY-----\n" + "\n".join(f"{n:064d}" for n in range(1, 5)) + "\n-----END KEY-----\n"
    shown = mask(key).text(base64.encodebytes(key.encode()).decode())
    assert shown.strip() == "***TOKEN***"
    assert mask(key).text(f"grep: {3:064d}!") == "grep: ***TOKEN***!"
    assert mask(key).text("-----BEGIN KEY-----") == "-----BEGIN KEY-----"
    assert mask(key).text(key.replace("\n", "\r\n")) == "***TOKEN***"


def test_the_whole_of_a_longer_secret_goes_before_a_shorter_one_within_it() -> None:
    both = Mask({b"topsecret": b"***A***", b"topsecret-and-more": b"***B***"})
    assert both.whole(b"topsecret-and-more topsecret") == b"***B*** ***A***"


@pytest.mark.parametrize("size", range(1, 12))
def test_a_secret_is_masked_however_it_is_cut(size: int) -> None:
    data = b"a--" + b"topsecret" * 2 + b"topsec" + b"xtopsecre"
    stream = MaskedStream(Mask({b"topsecret": None, b"other": None}))
    shown = b"".join(stream.feed(data[at : at + size]) for at in range(0, len(data), size)) + stream.finish()
    assert shown == b"a--" + b"*" * 18 + b"topsecxtopsecre"


def test_nothing_is_held_back_that_begins_no_secret() -> None:
    stream = MaskedStream(Mask({b"topsecret": None}))
    assert stream.feed(b"data: 2\n\n") == b"data: 2\n\n"


@given(st.lists(st.sampled_from([b"top", b"secret", b"t", b"to", b"psecret-12", b"-12", b"x", b"\n"]), max_size=30))
def test_a_stream_shows_what_the_whole_text_would(pieces: list[bytes]) -> None:
    hides = Mask({b"topsecret-12": b"###"})
    stream = MaskedStream(hides)
    assert b"".join(map(stream.feed, pieces)) + stream.finish() == hides.whole(b"".join(pieces))


@pytest.mark.parametrize("cut", range(1, len(VALUE)))
def test_of_a_secret_on_a_border_less_than_half_is_shown(cut: int) -> None:
    for part in (mask(VALUE).part(f"text {VALUE[:cut]}"), mask(VALUE).part(f"{VALUE[cut:]} text")):
        assert part in (f"text {VALUE[:cut]}", f"{VALUE[cut:]} text") if "***" not in part else True
    shown = mask(VALUE).part(f"text {VALUE[:cut]}") + mask(VALUE).part(f"{VALUE[cut:]} text")
    assert "***TOKEN***" in shown
    assert VALUE[:4] not in shown or VALUE[-4:] not in shown


def test_a_screen_keeps_its_lines() -> None:
    drawn = mask("topsecret-0123").drawn("$ echo topse\ncret-0123\n$")
    assert drawn == "$ echo ***TOKEN***\n\n$"


def test_everything_in_an_envelope_is_masked_but_the_bytes_of_a_download() -> None:
    hidden = secrets("topsecret-0123")
    ran = op.RunResult(
        id="c1", output="a topsecret-0123", stdout="topsecret-0123", stdout_bytes=b"topsecret-0123", cwd="/x"
    )
    notice = Notice("network_denied", "topsecret-0123.example.com is refused.", "Ask for topsecret-0123.")
    answer: Any = hidden.envelope(Success(ran, notices=(notice,)))
    assert b"topsecret" not in repr((answer, answer.result.stdout_bytes)).encode()
    assert answer.result.cwd == "/x"
    failure: Any = Failure(ErrorCode.io_error, "no topsecret-0123.", "See topsecret-0123.", result=ran)
    assert "topsecret" not in json.dumps(hidden.envelope(failure).to_dict())
    got: Any = hidden.envelope(
        Success(op.DownloadResult(path="topsecret-0123", content=b"topsecret-0123", kind="file"))
    )
    assert (got.result.path, got.result.content) == ("***TOKEN***", b"topsecret-0123")


def test_what_is_worded_is_masked_before_it_is_cut() -> None:
    """A host name of 120 characters is cut at that: no part of a secret that lies there may be left."""
    hidden, value = secrets("topsecret-0123"), "topsecret-0123"
    for before in range(100, 125):
        said = {"code": "network_denied", "host": "h" * before + value, "port": 443, "why": "x" * before * 2 + value}
        (notice,) = notices_of(hidden.mask.fields([said]))
        assert "tops" not in f"{notice.message}{notice.hint}"


def test_what_a_guest_cut_is_masked_at_its_border() -> None:
    hidden = secrets("topsecret-0123")
    told = hidden.mask.fields({"names": [f"{'d' * 40}/topsecr"], "program": "tops", "count": 3})
    assert told == {"names": [f"{'d' * 40}/***TOKEN***"], "program": "tops", "count": 3}


def test_a_wrong_argument_is_masked_before_it_is_cut() -> None:
    env = Environment()
    env.hidden.hide("TOKEN", "topsecret-0123")
    for before in range(64, 82):
        answer = env.execute("read", {"path": "a", "start_line": "x" * before + "topsecret-0123"})
        assert not answer.ok
        assert "tops" not in answer.error


def test_what_a_tool_raised_is_masked_before_it_is_cut() -> None:
    env = Environment()
    env.hidden.hide("TOKEN", "topsecret-0123")

    class Tool:
        name = "tool"

        def execute(self, /, **_: Any) -> Any:
            raise ValueError("x" * 1970 + "topsecret-0123")

    assert "tops" not in env.execute_action(Tool(), {})["error"]


def test_the_rules_that_a_model_is_told_of_are_masked_before_they_are_cut() -> None:
    host = f"{'a' * 50}.{'b' * 60}.topsecret-0123.example.com"
    assert "tops" not in Network.allow(host).describe(secrets("topsecret-0123").mask.names)


@pytest.mark.parametrize("before", range(285, 301))
def test_the_log_of_connections_is_masked_before_it_is_cut(before: int) -> None:
    log = ConnectionLog(mask=secrets("topsecret-0123").mask.names)
    log.add(Connection("h" * before + "TopSecret-0123", 80, "denied", why="w" * before + "topsecret-0123"))
    (one,) = log.last()
    assert "tops" not in f"{one.host}{one.why}".lower()
    assert len(one.host) <= 300


def test_an_output_without_its_middle_shows_no_part_of_a_secret_at_the_cut() -> None:
    text = "head topsecr\n[... 999 bytes cut; all of it in /run/gamebox/c1.log ...]\nret-0123 tail"
    ran = op.RunResult(output=text, stdout=text, truncated=True)
    answer: Any = secrets("topsecret-0123").envelope(Success(ran))
    shown = answer.result.output
    assert shown == "head ***TOKEN***\n[... 999 bytes cut; all of it in /run/gamebox/c1.log ...]\n***TOKEN*** tail"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TOKEN", "short", "fewer than 8"), ("TOKEN", "a      b  "[:7] + "  ", "fewer than 8"), ("A-B", "long enough", "'A-B'"),
        ("", "long enough", "not a valid name"), ("TOKEN", "long\0enough", "NUL"), ("TOKEN", "x" * (128 << 10), "longer"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_secret_is_refused_and_not_repeated(name: str, value: str, said: str) -> None:
    made = Secrets()
    with pytest.raises(SandboxError) as caught:
        made.add(name, value, True)
    assert caught.value.code == "invalid_configuration"
    assert said in str(caught.value)
    assert value not in str(caught.value)
    assert not made


def test_an_earlier_value_stays_masked() -> None:
    made = secrets("topsecret-0123")
    made.add("TOKEN", "another-secret", True)
    assert made.mask.text("topsecret-0123 another-secret") == "***TOKEN*** ***TOKEN***"
    assert made.variables(None) == {"TOKEN": "another-secret"}


def test_what_of_a_header_is_hidden() -> None:
    assert credentials_of("Bearer abcdefgh") == ("Bearer abcdefgh", "abcdefgh")
    basic = base64.b64encode(b"user:a-password").decode()
    assert credentials_of(f"Basic {basic}") == (f"Basic {basic}", basic, "user:a-password", "a-password")
    assert credentials_of("Basic not-base64!") == ("Basic not-base64!", "not-base64!")
    assert credentials_of("a b") == ("a b",)


def test_who_follows_masks_what_is_given_now_and_later_and_gives_none_of_it() -> None:
    first, side, twin, beside_twin = Secrets(), Secrets(), Secrets(), Secrets()
    first.add("ONE", "0123456789", True)
    first.followed_by(side)
    twin.followed_by(beside_twin)
    first.add("TWO", "abcdefghij", True)
    first.copy_to(twin)
    for follower in (side, beside_twin):
        assert follower.mask.text("0123456789 abcdefghij") == "***ONE*** ***TWO***"
        assert follower.variables(None) == {}
    assert set(twin.variables(None)) == {"ONE", "TWO"}
