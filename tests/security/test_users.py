"""Commands of other users: root only where the profile and the host's program say so, and never by what a model can write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agent import Action
from sandbox import DockerEnvironment, Limits
from tests.contract.checks import refused

from .probing import probe

pytestmark = pytest.mark.engine

LIMITS = Limits(memory_bytes=512 << 20, pids=256)


@pytest.fixture(scope="module")
def mixed() -> Iterator[DockerEnvironment]:
    with DockerEnvironment(profile="root-on-request", limits=LIMITS) as env:
        yield env


@pytest.fixture(scope="module")
def rooted() -> Iterator[DockerEnvironment]:
    with DockerEnvironment(profile="root", limits=LIMITS) as env:
        yield env


def said(env: DockerEnvironment, command: str, **options: Any) -> str:
    return env.run(command, **options).unwrap().output


def test_root_runs_only_on_request(mixed: DockerEnvironment) -> None:
    """FOREIGN 1 (inspect's test_exec_as_user): a command as root, in a sandbox whose other commands are uid 1000."""
    assert said(mixed, "id -u; id -g; id -G; echo $HOME $USER") == "1000\n1000\n1000\n/home/agent agent\n"
    assert said(mixed, "id -u; echo $HOME $USER $LOGNAME; pwd", user="root") == "0\n/root root root\n/workspace\n"
    assert said(mixed, "touch /etc/made && stat -c %U /etc/made", user=0) == "root\n"
    assert said(mixed, "touch /etc/made", session=None).endswith("Permission denied\n")
    assert said(mixed, "id -un; id -gn", user="nobody") == "nobody\nnogroup\n"
    assert said(mixed, "id -u; id -G; echo $HOME", user="4321", session=None) == "4321\n4321\n/\n"


def test_file_tools_act_as_uid_1000_beside_root(mixed: DockerEnvironment) -> None:
    mixed.write("mine.txt", "x").unwrap()
    assert said(mixed, "stat -c %u mine.txt") == "1000\n"
    said(mixed, "umask 077; echo secret > /workspace/roots.txt", user="root")
    refused(mixed.read("roots.txt"), "permission_denied")
    refused(mixed.edit("roots.txt", "secret", "known"), "permission_denied")
    refused(mixed.download("roots.txt"), "permission_denied")
    assert not mixed.write("/etc/made", "x").ok


def test_root_finds_no_program_that_uid_1000_has_made(mixed: DockerEnvironment) -> None:
    """Threat: uid 1000 puts a program first into root's PATH, and waits."""
    trap = "mkdir -p ~/.local/bin && cd ~/.local/bin && printf '#!/bin/sh\\nid -u > /tmp/trapped' > uname && chmod 755 uname"
    said(mixed, trap, session=None)
    assert "Linux" in said(mixed, "uname -a", user="root")
    assert mixed.run(argv=["uname"], user="root").unwrap().output == "Linux\n"
    assert not mixed.run("cat /tmp/trapped").unwrap().output.startswith("0")
    assert "/home/agent" not in said(mixed, "echo $PATH", user="root")


def test_the_default_user_gains_nothing(mixed: DockerEnvironment) -> None:
    """Threat: uid 1000 uses what root on request needs: capabilities, set-user-id programs, sudo."""
    said(mixed, "cp /bin/bash /usr/local/bin/raise && chmod 4755 /usr/local/bin/raise", user="root")
    said(
        mixed,
        "printf '#!/bin/sh\\nexec \"$@\"\\n' > /usr/local/bin/sudo && chmod 4755 /usr/local/bin/sudo",
        user="root",
    )
    assert said(mixed, "raise -p -c 'id -u'; sudo id -u; su -c 'id -u' 2>/dev/null; true") == "1000\n1000\n"
    status = said(mixed, "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status")
    assert {line.split(":\t")[1] for line in status.splitlines() if line.startswith("Cap")} == {"0" * 16}
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status


def test_each_user_has_sessions_of_its_own(mixed: DockerEnvironment) -> None:
    """Threat: a session that uid 1000 has filled with functions and variables is used by root."""
    said(mixed, "ls() { echo forged; }; export PATH=/workspace:$PATH; cd /tmp", session="shared")
    assert (
        said(mixed, "pwd; type -t ls; echo $PATH | grep -c workspace", session="shared", user="root")
        == "/workspace\nfile\n0\n"
    )
    said(mixed, "cd /root", session="shared", user="root")
    assert said(mixed, "pwd", session="shared") == "/tmp\n"
    assert said(mixed, "pwd", session="shared", user="0") == "/root\n"
    assert mixed.end_session("shared", user="root").unwrap().existed
    assert said(mixed, "pwd", session="shared") == "/tmp\n"
    assert mixed.end_session("shared").unwrap().existed
    assert not mixed.end_session("shared", user="root").unwrap().existed


def test_a_model_cannot_reach_another_user(mixed: DockerEnvironment) -> None:
    """Threat: a model asks for root, or types into a command that the host's program runs as root."""
    for name, args in (
        ("run", {"command": "id -u", "user": "root"}),
        ("end_session", {"session": "default", "user": "root"}),
        ("send", {"id": "c1", "user": "root"}),
        ("kill", {"id": "c1", "user": "root"}),
        ("resize", {"id": "c1", "rows": 1, "cols": 1, "user": "root"}),
    ):
        action = Action(name, lambda **_: None, name, {})
        action.operation = name  # type: ignore[attr-defined]
        answer = mixed.execute_action(action, args)
        assert (answer["tool_executed"], answer["code"]) == (False, "invalid_arguments"), answer
        assert "user" in answer["error"]
    shell = mixed.run("bash", user="root", pty=True, background=True).unwrap().id
    refused(mixed.send(shell, "id\n"), "user_not_allowed", "root", "logs")
    refused(mixed.kill(shell), "user_not_allowed", "root", "logs")
    refused(mixed.kill(shell, "SIGINT"), "user_not_allowed", "root", "logs")
    refused(mixed.resize(shell, 5, 20), "user_not_allowed", "root", "logs")
    assert "uid=0(root)" in mixed.send(shell, "id\n", user="root").unwrap().output
    assert mixed.kill(shell, user="root").ok


def test_the_terminal_of_root_is_closed_to_others(mixed: DockerEnvironment) -> None:
    """Threat: uid 1000 opens the terminal or the pipes of a command that runs as root."""
    shell = mixed.run("tty; sleep 100", user="root", pty=True, background=True).unwrap().id
    mixed.wait_for(id=shell, log="/dev/pts").unwrap()
    opened = """
import os
for root, folders, files in os.walk("/proc"):
    folders[:] = [f for f in folders if f.isdigit()] if root == "/proc" else [f for f in folders if f == "fd"]
    for name in files if root.endswith("/fd") else ():
        path = f"{root}/{name}"
        if os.stat(root).st_uid == 0:
            print("LISTED", path)
for name in os.listdir("/dev/pts"):
    if name != "ptmx":
        try: os.open(f"/dev/pts/{name}", os.O_RDWR | os.O_NOCTTY); print("OPENED", name)
        except OSError: pass
print("done")
"""
    assert probe(mixed, opened) == "done\n"
    mixed.kill(shell, user="root").unwrap()


def test_any_user_of_the_image_in_profile_root(rooted: DockerEnvironment) -> None:
    said(rooted, "groupadd -g 7000 crew && useradd -m -u 7001 -G crew worker")
    assert said(rooted, "id -un; id -Gn; echo ~; touch /etc/x 2>&1 | tail -c 18", user="worker") == (
        "worker\nworker crew\n/home/worker\nPermission denied\n"
    )
    assert said(rooted, "grep CapBnd /proc/self/status", user="worker", session=None) == f"CapBnd:\t{'0' * 16}\n"
    assert said(rooted, "id -u") == "0\n"
    assert said(rooted, "tty >/dev/null && echo yes > $(tty) && id -un", user="worker", pty=True).split() == [
        "yes",
        "worker",
    ]
    refused(rooted.run("true", user="nosuch"), "user_not_found", "'nosuch'", "/etc/passwd")


HOSTILE = {
    "a number that means no change": "printf 'x:x:4294967295:4294967295::/:\\n' > /etc/passwd",
    "a FIFO": "rm /etc/passwd; mkfifo /etc/passwd",
    "endless": "ln -sf /dev/zero /etc/passwd",
    "a folder": "rm /etc/passwd; mkdir /etc/passwd",
    "huge": "head -c 100M /dev/zero | tr '\\0' ':' > /etc/passwd",
    "many rows": "yes '' | head -c 1000000 > /etc/passwd",
    "not text": "head -c 1000 /dev/urandom > /etc/passwd",
    "missing": "rm /etc/passwd",
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_list_of_users(rooted: DockerEnvironment, attack: str) -> None:
    """Threat: root inside replaces /etc/passwd, which the guest reads to find a user."""

    def shell(text: str, **options: Any) -> Any:  # bash reads /etc/passwd itself and would wait for a FIFO
        return rooted.run(argv=["sh", "-c", text], session=None, timeout_seconds=20, **options)

    shell(f"[ -e /etc/passwd.first ] || cp /etc/passwd /etc/passwd.first; {HOSTILE[attack]}").unwrap()
    try:
        for user in ("x", "4294967295", "-1"):
            refused(shell("id -u", user=user), "user_not_found")
        assert shell("id -u; echo $HOME", user="root").unwrap().output == "0\n/root\n"
        assert shell("id -u", user="65534").unwrap().output == "65534\n"
    finally:
        shell("rm -rf /etc/passwd; cp /etc/passwd.first /etc/passwd").unwrap()


def test_default_refuses_other_users(env: DockerEnvironment) -> None:
    for user in ("root", 0, "nobody", "4321", "nosuch"):
        refused(env.run("id -u", user=user), "user_not_allowed", "'agent'", "root-on-request")
    for user in ("agent", "1000", 1000):
        assert said(env, "id -u", user=user) == "1000\n"


def test_bounds_of_a_user_s_name(env: DockerEnvironment) -> None:
    for user in ("", "x" * 257, "a\0b", "\ud800"):
        refused(env.run("true", user=user), "invalid_arguments")


def test_reading_what_any_command_can_read(mixed: DockerEnvironment) -> None:
    """FOREIGN 1 and 3 (inspect's test_read_file_is_directory): /etc as uid 1000, where asked for, and nothing that is root's."""
    refused(mixed.read("/etc/hostname"), "path_outside_roots")
    with DockerEnvironment(limits=LIMITS, read_roots=["/"]) as env:
        assert env.read("/etc/hostname").unwrap().content == "sandbox\n"
        assert env.download("/etc/hostname").unwrap().content == b"sandbox\n"
        assert (env.stat("/etc/shadow").unwrap().owner, env.stat("/etc").unwrap().type) == ("root", "directory")
        refused(env.read("/etc"), "is_a_directory")
        refused(env.read("/etc/shadow"), "permission_denied")
        for path in ("/proc/1/environ", "/proc/1/mem", "/proc/self/environ", "/proc/self/maps", "/proc/1/root/etc/shadow"):
            found = env.read(path)
            assert not found.ok or not found.unwrap().content, path
        for path in ("/etc/new", "/var/new", "/proc/sys/kernel/core_pattern"):
            refused(env.write(path, "x"), "path_outside_roots")
        assert "below /" in env.describe()["sandbox"]


def test_a_folder_that_only_root_may_enter(mixed: DockerEnvironment) -> None:
    refused(mixed.run("pwd", cwd="/root", session=None), "working_directory_invalid", "/root")
    assert said(mixed, "pwd", cwd="/root", session=None, user="root") == "/root\n"
    refused(mixed.run("pwd", cwd="/root/none", session=None, user="root"), "working_directory_invalid", "/root/none")
