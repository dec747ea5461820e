"""A plain command leaves its bash as it was: whatever is called plain is run by a real bash, which says what it has afterwards."""

from __future__ import annotations

import string
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.guest.commands import plain_commands, sessions
from sandbox.guest.commands.plain_commands import PLAIN, is_plain
from sandbox.guest.commands.sessions import Session, may_start_customized, parse_folder, parse_state

from .test_sessions import state_after

ENV = {"G_A": "a", "HOME": "/", "LC_CTYPE": "C.UTF-8"}


@pytest.mark.parametrize(
    "command",
    [
        "true",
        "ls -la src/*.py",
        "cd src && python3 -m pytest -q tests/test_a.py 2>&1 | tail -20",
        "grep -rn 'class Foo(' . ; git diff HEAD~1 -- a.py",
        "make CC=gcc -j2 > build.log 2>&1 &",
        'python3 -c "print(1); import os"',
        "sed -n '1,20p' a.py\nwc -l a.py\n",
        "sleep 5 & sleep 6",
        "cat < in > out 2>/dev/null",
        "git commit -qm 'say $HOME, and `why`'",
        "",
        " \n ",
    ],
)
def test_usual_commands_are_plain(command: str) -> None:
    assert is_plain(command)


@pytest.mark.parametrize(
    "command",
    [
        "export G_B=1",
        "G_B=1",
        "G_B=1 true",
        "unset G_A",
        "true; read G_B",
        "true &&\tunset G_A",
        "true|read G_B",
        "true&export G_B=1",
        "true\nexport G_B=1",
        "'export' G_B=1",
        "ex'po'rt G_B=1",
        'e"x"port G_B=1',
        "e\\xport G_B=1",
        ">/dev/null export G_B=1",
        "2>/dev/null export G_B=1",
        "ex?ort G_B=1",
        "$CMD G_B=1",
        "echo ${G_B:=1}",
        "echo $((G_B=1))",
        "echo `true`",
        'echo "${G_B:=1}"',
        "f() { :; }",
        "function f { true; }",
        "{ true; }",
        "(true)",
        "! true",
        "for a in b; do true; done",
        "if true; then cd /; fi",
        "[ -v 'a[G_B=1]' ]",
        "[[ -n a ]]",
        ". ./env",
        "source env",
        "true {fd}>/dev/null",
        "cat << END\nEND",
        "cat <<< x",
        "cat <(true)",
        "exit 3",
        "set -x",
        "trap 'echo bye' EXIT",
        "echo 'open",
        "echo # no",
        "true\rtrue",
        "true\u00a0export",
        "time true",
        "coproc cat",
        "wait -p G_B",
        "printf -v G_B 1",
    ],
)
def test_what_may_change_the_shell_is_not_plain(command: str) -> None:
    assert not is_plain(command)


@pytest.mark.parametrize("name", ["BASH_ENV", "SHELLOPTS", "BASHOPTS", "POSIXLY_CORRECT", "POSIX_PEDANTIC", "BASH_FUNC_f%%"])
def test_a_bash_that_may_start_with_more_is_recognized(name: str) -> None:
    session = Session("/", {})
    assert not may_start_customized(session, ENV)
    assert may_start_customized(session, {**ENV, name: ""})
    session.variables = {name: ""}
    assert may_start_customized(session, ENV)
    session.variables, session.functions = {}, "f () { :; }"
    assert may_start_customized(session, ENV)


def test_every_builtin_is_known() -> None:
    names = subprocess.run(["bash", "-c", "compgen -bk"], capture_output=True, text=True, check=True).stdout.split()
    writable = {name for name in names if set(name) <= set(plain_commands._NAME_CHARS)}
    assert writable - PLAIN <= plain_commands._BUILTINS
    assert not plain_commands._BUILTINS & PLAIN


WORDS = [
    *sorted(plain_commands._BUILTINS), *sorted(PLAIN) * 5, *"abc", "G_A", "G_B=1", "-v", "-p", "1", "/", "..", "'x y'", '"x"',
    "'G_B=1'", "*",
]  # fmt: skip
JOINTS = [
    *[" "] * 8, ";", "&", "|", "&&", "||", "\n", ">", ">>", "<", "2>&1 ", ">/dev/null ", "", "\t", "$", "\\", "(", ")", "{", "}",
    "#", "!", "=",
]  # fmt: skip
_pieces = st.tuples(st.sampled_from(WORDS), st.sampled_from(JOINTS)).map("".join)


@given(command=st.lists(_pieces, max_size=6).map("".join) | st.text(string.printable, max_size=12))
@settings(max_examples=400, deadline=None)
def test_plain_commands_leave_the_shell_as_it_was(tmp_path_factory: pytest.TempPathFactory, command: str) -> None:
    if not is_plain(command):
        return
    cwd = tmp_path_factory.mktemp("cwd")
    Path(cwd, "export").touch()  # for a glob
    env = {**ENV, "PATH": "/nowhere"}
    before, after = (parse_state(state_after("/bin/bash", text, env, str(cwd))[1]) for text in ("true", command))
    assert before is not None
    assert after is not None
    assert before[1:] == after[1:]


def test_a_command_that_is_long_to_look_at_is_not_plain() -> None:
    assert is_plain("echo " + "''" * 500)
    assert not is_plain("echo " + "''" * 50_000)


@pytest.mark.parametrize(
    ("command", "code", "folder"),
    [("cd /tmp", 0, "/tmp"), ("cd /tmp; false", 1, "/tmp"), ("ls |", 2, "/"), ("cd /tmp | cd /usr", 0, "/"), ("nothere", 127, "/")]
    + [(f"cd /tmp; sh -c 'kill -{name} $PPID'", -number, "/tmp") for name, number in (("TERM", 15), ("HUP", 1), ("PIPE", 13))],
)
def test_its_folder_and_its_status_are_kept(command: str, code: int, folder: str) -> None:
    build: Callable[..., list[str]] = sessions.build_shell_argv
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tests.guest.commands.test_sessions.build_shell_argv", lambda *args: build(*args, plain=True))
        status, left = state_after("/bin/bash", command, ENV, "/")
    assert (status, parse_folder(left)) == (code, folder)
    assert left == f"\0{folder}\0".encode()


def test_a_folder_that_was_overwritten_is_none() -> None:
    assert parse_folder(b"") is None
    assert parse_folder(b"/unfinished") is None
    assert parse_folder(b"x/y\0") is None


def test_what_the_command_wrote_before_is_no_part_of_its_folder() -> None:
    assert parse_folder(b"/junk\0/tmp\0") == "/tmp"
    assert parse_folder(b"/a\0/junk\0/tmp\0") == "/tmp"
