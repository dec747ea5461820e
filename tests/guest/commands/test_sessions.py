"""What a shell leaves is what the session takes over, whatever the values: through the real shells of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.guest import users
from sandbox.guest.commands import sessions
from sandbox.guest.commands.sessions import (
    Session,
    build_carried_arguments,
    build_shell_argv,
    parse_exports,
    parse_functions,
    parse_state,
    update_session,
)

SHELLS = [path for name in ("bash", "dash", "busybox") if (path := shutil.which(name))]
_values = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
_awkward = st.lists(
    st.sampled_from(
        [
            "'",
            '"',
            "\\",
            "$",
            "`",
            "\n",
            "\r",
            "\t",
            "\x01",
            "\x7f",
            "!",
            "export A=",
            "declare -x B=",
            "é",
            "\udcff",
            " ",
            "$'",
        ]
    ),
    max_size=8,
).map("".join)
_names = st.from_regex(r"\AG_[A-Za-z0-9_]{0,8}\Z")


def state_after(
    shell: str, command: str, env: dict[str, str], cwd: str, carried: Sequence[str] = ()
) -> tuple[int, bytes]:
    """Exit status and what the shell left, run as the guest runs it."""
    fd = os.memfd_create("state")
    target = 9
    argv = build_shell_argv(shell, target, command, tuple(carried))
    if shell.endswith("busybox"):
        argv = [shell, "sh", *argv[1:]]

    def connect() -> None:
        os.dup2(fd, target, inheritable=True)

    done = subprocess.run(
        argv,
        env={"PATH": os.environ["PATH"], **env},
        cwd=cwd,
        preexec_fn=connect,
        close_fds=False,
        capture_output=True,
        check=False,
        timeout=20,
    )
    try:
        return done.returncode, os.pread(fd, 1 << 20, 0)
    finally:
        os.close(fd)


@pytest.mark.parametrize("shell", SHELLS)
@given(values=st.dictionaries(_names, _values | _awkward, max_size=4))
@settings(max_examples=12, deadline=None)
def test_any_value_carries_over(shell: str, values: dict[str, str]) -> None:
    code, left = state_after(shell, "true", values, "/")
    state = parse_state(left)
    assert code == 0
    assert state is not None
    assert state[0] == "/"
    assert {name: value for name, value in state[1].items() if name.startswith("G_")} == values


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("export G_A='a b'; cd /tmp", 0),
        ("export G_A='a b'; cd /tmp; exit 3", 3),
        ("export G_A='a b'; cd /tmp; (exit 4)", 4),
        ("set -e; export G_A='a b'; cd /tmp; false; cd /", 1),
        ("set -x; export G_A='a b'; cd /tmp", 0),
        ("G_A='a b'; export G_A; readonly G_A; cd /tmp", 0),
        ("f() { export G_A='a b'; cd /tmp; return 5; }; f", 5),
        ("cd /tmp; export G_A='a b'; exec 1>&- 2>&-", 0),
    ],
)
def test_ways_to_end(shell: str, command: str, code: int) -> None:
    status, left = state_after(shell, command, {}, "/")
    state = parse_state(left)
    assert status == code
    assert state is not None
    assert (state[0], state[1]["G_A"]) == ("/tmp", "a b")
    assert "G_B" not in state[1]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("command", ["if then fi", "echo 'open", "kill -9 $$", "exec true", "trap - EXIT; exit 1"])
def test_no_state_is_better_than_a_wrong_one(shell: str, command: str) -> None:
    _, left = state_after(shell, command, {"G_A": "1"}, "/")
    state = parse_state(left)
    assert state is None or (state[0], state[1]["G_A"]) == ("/", "1")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("junk", ["/junk", "x", "/etc\\0", "\\0/etc\\0export A=1\\n\\0\\0"])
def test_what_the_command_wrote_before_is_no_part_of_the_state(shell: str, junk: str) -> None:
    _, left = state_after(shell, f"printf '{junk}' >&9; cd /tmp; export G_A=1", {}, "/")
    state = parse_state(left)
    assert state is not None
    assert (state[0], state[1]["G_A"]) == ("/tmp", "1")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_variable_without_a_value_is_none(shell: str) -> None:
    _, left = state_after(shell, "export G_UNSET; export G_EMPTY=; unset PATH", {}, "/")
    state = parse_state(left)
    assert state is not None
    assert state[1].get("G_EMPTY") == ""
    assert "G_UNSET" not in state[1]
    assert not {"_", "SHLVL", "PWD", "OLDPWD", "PATH"} & set(state[1])


@given(st.text(max_size=200) | st.text(st.sampled_from("export declare -x A='\"\\$\n="), max_size=200))
def test_parse_exports_answers_for_any_text(text: str) -> None:
    for name, value in parse_exports(text).items():
        assert isinstance(value, str)
        assert name.isidentifier()


@given(st.binary(max_size=200))
def test_parse_state_answers_for_any_bytes(data: bytes) -> None:
    state = parse_state(data)
    assert state is None or (state[0].startswith("/") and state[1])


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('declare -x A="a\\"b\\$c\\`d\\\\e"\n', {"A": 'a"b$c`d\\e'}),
        ("declare -x A=$'a\\nb\\001\\'c\\303\\251'\n", {"A": "a\nb\x01'cé"}),
        ("export A='a'\"'\"'b'\n", {"A": "a'b"}),
        ("export A='a'\\''b'\n", {"A": "a'b"}),
        ('declare -rx A="1"\ndeclare -ix B="2"\n', {"A": "1", "B": "2"}),
        ('declare -x A="line\ndeclare -x B=\\"no\\"\n"\n', {"A": 'line\ndeclare -x B="no"\n'}),
        ("declare -x A\n", {}),
        ('declare -x BASH_FUNC_f%%="() { :; }"\n', {}),
        ("", {}),
    ],
)
def test_quoting(text: str, values: dict[str, str]) -> None:
    assert parse_exports(text) == values


def test_what_was_given_for_one_run_is_taken_back() -> None:
    session = Session("/workspace", {"KEPT": "old", "GIVEN": "own"})
    env = {"GIVEN": "given", "NEW": "given", "CHANGED": "given"}
    exported = {"KEPT": "new", "GIVEN": "given", "NEW": "given", "CHANGED": "by it"}
    left = ("/elsewhere", exported, "", {"PLAIN": "1"})
    update_session(session, env, left)
    assert session.env == {"KEPT": "new", "GIVEN": "own", "CHANGED": "by it"}
    assert session.variables == {"PLAIN": "1"}
    update_session(session, {"PLAIN": "given"}, ("/workspace", {"PLAIN": "given"}, "", {}))
    assert session.variables == {"PLAIN": "1"}
    assert "PLAIN" not in session.env
    update_session(session, {}, ("/tmp", {"A": "1"}, "", {}))
    assert session.env == {"A": "1"}


def ran(command: str, env: dict[str, str], **options: Any) -> str:
    """What bash prints for a command whose state nothing carries over."""
    argv = build_shell_argv("/bin/bash", None, command, **options)
    return subprocess.run(argv, env={"PATH": "/bin:/usr/bin", **env}, capture_output=True, text=True, check=False).stdout


def test_a_command_without_a_state_runs_as_the_others() -> None:
    assert ran("echo $0 $#; trap -p", {}) == "bash 0\n"
    assert build_shell_argv("/bin/bash", None, "false")[:2] == ["/bin/bash", "-c"]
    for command, status in (("false", 1), ("exit 3", 3), ("set -eu; false; true", 1), ("sh -c 'kill -9 $$'", 137)):
        argv = build_shell_argv("/bin/bash", None, command)
        assert subprocess.run(argv, capture_output=True, check=False).returncode == status
    assert ran("f", {}, carried=["f() { echo carried; }"]) == "carried\n"


@pytest.mark.parametrize("fd", [None, 2])
def test_bash_has_its_shell_as_if_it_had_looked_it_up(fd: int | None) -> None:
    """SHELL in the environment spares bash the user database; what it starts must not see it there."""
    argv = build_shell_argv("/bin/bash", fd, "declare -p SHELL; env | grep -c SHELL=", unexport_shell=True)
    env = {"PATH": "/bin:/usr/bin", "SHELL": "/bin/some-shell"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.stdout == 'declare -- SHELL="/bin/some-shell"\n0\n'


def test_the_shell_of_a_user_is_that_of_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tmp_path / "passwd"
    monkeypatch.setattr(users, "PASSWD", str(rows))
    monkeypatch.setattr(users, "_login_shells", {})
    assert users.find_login_shell(1000) == "/bin/sh"
    rows.write_text("root:x:0:0::/root:/bin/bash\na:x:1000:1000::/home/a:/bin/zsh\nb:x:1001:1001::/:\nc:x:1002\n")
    assert [users.find_login_shell(uid) for uid in (0, 1000, 1001, 1002, 1003)] == [
        "/bin/bash", "/bin/zsh", "/bin/sh", "/bin/sh", "/bin/sh",
    ]  # fmt: skip
    rows.write_text("a:x:1000:1000::/home/a:/bin/dash\n")
    os.utime(rows, ns=(1, 1))
    assert users.find_login_shell(1000) == "/bin/dash"


def test_a_shell_is_found() -> None:
    found = sessions.find_shell()
    assert found is not None
    assert os.access(found[0], os.X_OK)


def carried_by(command: str, env: dict[str, str] | None = None, carried: Sequence[str] = ()) -> list[str]:
    """What the next shell is given after ``command``."""
    _, left = state_after("/bin/bash", command, env or {}, "/", carried)
    state = parse_state(left)
    assert state is not None
    return build_carried_arguments(state[2], state[3], ())


def printed(command: str, carried: Sequence[str], **env: str) -> str:
    """What ``command`` leaves in G_OUT, given what was carried."""
    _, left = state_after("/bin/bash", f"export G_OUT=; {command}", env, "/", carried)
    state = parse_state(left)
    assert state is not None
    return state[1]["G_OUT"]


def test_nothing_is_carried_where_there_is_nothing() -> None:
    assert carried_by("true") == []
    assert carried_by("export A=1; (f() { :; }; B=1)") == []


def test_functions_carry_over_and_can_be_unset() -> None:
    carried = carried_by("greet() { local x='a b'; G_OUT=\"$x $1\"; }; h() { cat <<E\n}\nE\n}; export -f greet")
    assert printed("greet you", carried) == "a b you"
    assert printed("greet you", carried_by("true", carried=carried)) == "a b you"
    assert "greet" in "".join(carried_by("true", carried=carried))
    assert carried_by("unset -f greet h", carried=carried) == []


def test_a_function_that_hides_a_builtin_does_no_harm() -> None:
    carried = carried_by("printf() { :; }; export() { :; }; declare() { :; }; cd() { builtin cd /tmp; }")
    _, left = state_after("/bin/bash", "cd; builtin export G_A=1", {}, "/", carried)
    state = parse_state(left)
    assert state is not None
    assert (state[0], state[1]["G_A"]) == ("/tmp", "1")
    assert "builtin cd /tmp" in state[2]


def test_many_long_functions() -> None:
    script = f"long=é{'x' * 1000}; for i in {{1..300}}; do eval \"f$i() {{ G_OUT='$long$i'; }}\"; done; unset long i"
    carried = carried_by(script)
    assert len(carried) > 5
    assert printed("f299", carried) == f"é{'x' * 1000}299"


@given(value=_values | _awkward)
@settings(max_examples=25, deadline=None)
def test_any_plain_value_carries_over(value: str) -> None:
    carried = carried_by("PLAIN=$G_IN; unset G_IN", {"G_IN": value})
    assert printed("G_OUT=$PLAIN", carried) == value
    assert printed("G_OUT=$PLAIN", carried_by("true", carried=carried)) == value


def test_the_environment_of_one_run_goes_before_a_plain_variable() -> None:
    assert build_carried_arguments("", {"A": "1", "B": "2"}, {"A": "3"}) == ["B=2\n"]


@pytest.mark.parametrize("shell", [s for s in SHELLS if not s.endswith("bash")])
def test_other_shells_carry_no_functions(shell: str) -> None:
    _, left = state_after(shell, "f() { :; }; A=1", {}, "/", ("ignored",))
    state = parse_state(left)
    assert state is not None
    assert state[2:] == ("", {})


def test_an_activated_environment_carries_over_and_can_be_left(tmp_path: Path) -> None:
    venv.create(tmp_path / "v", with_pip=False)
    path = os.environ["PATH"]
    _, left = state_after("/bin/bash", f". {tmp_path}/v/bin/activate", {}, "/")
    active = parse_state(left)
    assert active is not None
    assert active[1]["PATH"] == f"{tmp_path}/v/bin:{path}"
    _, left = state_after(
        "/bin/bash", "deactivate", active[1], "/", build_carried_arguments(active[2], active[3], active[1])
    )
    after = parse_state(left)
    assert after is not None
    assert after[1]["PATH"] == path
    assert "VIRTUAL_ENV" not in after[1]
    assert "deactivate" not in after[2]


def test_functions_that_take_the_shells_own_words_stay_behind() -> None:
    kept = "greet () \n{ \n    echo hello\n}\n"
    assert parse_functions("eval () \n{ \n    :\n}\n" + kept + "exit () \n{ \n    :\n}\n") == kept
    assert parse_functions("evaluate () \n{ \n    :\n}\n" + kept) == "evaluate () \n{ \n    :\n}\n" + kept


def test_no_function_is_kept_where_one_of_those_cannot_be_cut_out() -> None:
    assert parse_functions("greet () \n{ \n    :\n}\nexit () \n{ \n    cat <<X\nhere\nX\n\n}\n") == ""
