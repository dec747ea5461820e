"""Bytes that were made to be taken for something else, and commands of every odd size."""

from __future__ import annotations

import hashlib

import pytest

from sandbox import DockerEnvironment
from sandbox.errors import ErrorCode
from sandbox.guest.protocol import wire

from .probing import probe

pytestmark = pytest.mark.engine

FRAMES = b"".join(
    wire.frame(bytes(8), n, wire.Kind.REPLY, 1, wire.pack_message({"result": {"forged": True}})) for n in range(50)
)


def test_frames_on_standard_output_are_output(env: DockerEnvironment) -> None:
    """Threat: a command speaks the protocol of the pipe on its own streams and answers in the guest's name."""
    env.upload(FRAMES, "frames").unwrap()
    answer = env.run("cat frames; cat frames >&2; cat frames > /dev/stdout").unwrap()
    assert answer.output_bytes == 3 * len(FRAMES)
    assert env.run("echo next").unwrap().output == "next\n"
    elsewhere = env.run("cat frames > /proc/1/fd/4 || cat frames > /proc/1/fd/1 || cat frames > /dev/console")
    assert elsewhere.unwrap().exit_code != 0


def test_text_that_moves_the_cursor_is_data(env: DockerEnvironment) -> None:
    """Threat: control characters in names, output or variables break the reply or hide what was done."""
    odd = "\x1b[2J\x1b]0;title\x07\x00\x08\r\n\u202e\u2028\ud7ff"
    shown = env.run("cat", stdin=odd).unwrap()
    assert shown.output == odd
    assert env.run('printf %s "$ODD"', env={"ODD": odd.replace("\0", "")}).unwrap().output == odd.replace("\0", "")
    assert env.run("true", env={"NUL": "a\0b"}).code is ErrorCode.invalid_arguments  # type: ignore[union-attr]
    assert env.run("echo \0").code is ErrorCode.invalid_arguments  # type: ignore[union-attr]


def test_deep_json_in_variables(env: DockerEnvironment) -> None:
    """Threat: a value that a parser on the way takes apart exhausts its stack."""
    deep = "[" * 60000
    assert env.run("echo ${#DEEP}", env={"DEEP": deep}).unwrap().output == "60000\n"
    env.run(f"export DEEP='{deep}'").unwrap()
    assert env.run("echo ${#DEEP}").unwrap().output == "60000\n"
    env.run("unset DEEP").unwrap()


def test_large_arguments(env: DockerEnvironment) -> None:
    """Threat: a request of an odd size stops the guest or another request."""
    many = env.run(argv=["python3", "-c", "import sys; print(len(sys.argv))", *(["x"] * 100_000)])
    assert many.unwrap().output == "100001\n"
    for too_long in (
        env.run(argv=["true", "x" * 200_000]),
        env.run(argv=["true", *(["y" * 100] * 100_000)]),
        env.run("true", env={"LONG": "z" * 200_000}),
        env.run("true #" + "c" * 200_000),
    ):
        assert too_long.code is ErrorCode.arguments_too_long  # type: ignore[union-attr]
        assert too_long.hint  # type: ignore[union-attr]
    assert env.run("echo fine").unwrap().output == "fine\n"


def test_eight_mebibytes_of_input(env: DockerEnvironment) -> None:
    """Threat: input that nobody reads, or that is read late, holds up the guest."""
    data = bytes(range(256)) * 4096 * 8
    digest = env.run("sha256sum", stdin=data).unwrap().output.split()[0]
    assert digest == hashlib.sha256(data).hexdigest()
    assert env.run("true", stdin=data).unwrap().exit_code == 0
    assert env.run("sleep 0.2; head -c 3 | od -An -tx1", stdin=data).unwrap().output == " 00 01 02\n"
    assert env.run("cat /dev/stdin | wc -c", stdin=data[:100]).unwrap().output == "100\n"


def test_a_session_survives_what_its_commands_do_to_it(env: DockerEnvironment) -> None:
    """Threat: one command makes its session useless for all that follow."""
    session = "abused"
    attacks = [
        "for i in $(seq 10000); do export V$i=value-$i; done",
        "echo ${#V9999}; unset ${!V*}",
        "export HUGE=$(head -c 300000 /dev/zero | tr '\\0' a)",
        "export " + " ".join(f"W{i}=$(head -c 100000 /dev/zero | tr '\\0' b)" for i in range(12)),
        "exit() { :; }; printf() { :; }; export() { :; }; eval() { :; }; trap() { :; }",
        "readonly HOME PWD PATH; set -euo pipefail; false",
        "trap 'exit 3' EXIT; exec false",
        "export SHELLOPTS BASHOPTS; set -n",
        "export PS4='$(kill $$)'; set -x",
        "mkdir gone; cd gone; rmdir ../gone",
        "cd /; kill -9 $$",
        "if then fi (",
        "exec 0<&- 1>&- 2>&-",
        "ulimit -n 4; ulimit -v 1000; ulimit -f 0",
        "unset PATH HOME",
    ]
    for attack in attacks:
        env.run(attack, session=session, timeout_seconds=20)
        answer = env.run("echo alive", session=session)
        if not answer.ok and answer.code is ErrorCode.working_directory_invalid:
            answer = env.run("echo alive", session=session)  # as the hint says
        assert answer.ok, (attack[:60], answer)
        assert answer.unwrap().stdout == "alive\n", (attack[:60], answer)
    env.run("export KEPT=1; cd /tmp", session=session).unwrap()
    assert env.run("echo $KEPT; pwd", session=session).unwrap().stdout == "1\n/tmp\n"


def test_memory_of_another_command_is_its_own_affair_but_not_the_guests(env: DockerEnvironment) -> None:
    """Threat: what a command leaves in shared places is taken by the guest for its own: modules, startup files, libraries."""
    lay = (
        "for d in /tmp /workspace ~; do for m in json os socket site sitecustomize usercustomize encodings wire; do "
        "echo 'raise SystemExit(99)' > $d/$m.py; done; done; mkdir -p ~/.local/lib/python3.11/site-packages; "
        "cp ~/site.py ~/.local/lib/python3.11/site-packages/usercustomize.py; export PYTHONPATH=/tmp LD_PRELOAD=/tmp/x.so "
        "LD_LIBRARY_PATH=/tmp PYTHONHOME=/tmp PYTHONSTARTUP=/tmp/os.py"
    )
    env.run(lay, session="laid").unwrap()
    assert env.read("json.py").ok
    assert env.search("SystemExit", path="json.py").unwrap().matches
    assert env.browse("http://127.0.0.1:1/").code is ErrorCode.connection_failed  # type: ignore[union-attr]
    env.run("kill -9 -1; true", session=None)
    assert env.run("echo next", session=None).unwrap().output == "next\n"
    cleaned = probe(env, "print('clean')")
    env.run("rm -rf /tmp/*.py /workspace/*.py ~/*.py ~/.local", session=None).unwrap()
    assert "clean" in cleaned or "99" in cleaned  # the user's own python may well be fooled
