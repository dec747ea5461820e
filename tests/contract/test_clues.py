"""A command that failed for a reason that its output does not say is explained by a notice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sandbox.envelope import Envelope
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.guest.commands import limit_hits

from .checks import by_programs, done, seen_until

pytestmark = pytest.mark.needs("shell")
ASKING = """#!/bin/sh
set -e
echo Building
# read this first
while read -r line; do :; done < /dev/null
read -r {option}answer
echo "$answer"
"""


def text_of(answer: Envelope[Any], code: str) -> str:
    return " ".join(f"{n.message} {n.hint}" for n in answer.notices if n.code == code)


@pytest.mark.parametrize(
    ("command", "asked"),
    by_programs(
        ("sh build.sh", "build.sh reads an answer from standard input"),
        ("bash ./asking.sh", "./asking.sh reads an answer ('Publish? [y/N]')"),
        ("python3 -c 'input(\"Go on? \")'", "wanted input"),
        ("printf 'Overwrite? [y/N] '; exit 1", "wanted input ('Overwrite? [y/N]')"),
    ),
)
def test_a_prompt_that_read_the_end_of_its_input(env: SandboxedEnvironment, folder: str, command: str, asked: str) -> None:
    """s27: the script asked at an empty stdin and died by set -e; nothing said so."""
    done(env.write(f"{folder}/build.sh", ASKING.format(option="")))
    done(env.write(f"{folder}/asking.sh", ASKING.format(option='-p "Publish? [y/N] " ')))
    said = text_of(env.run(command, cwd=folder, session=None), "input_ended")
    assert asked in said
    assert "printf 'ANSWER\\n' |" in said


@pytest.mark.parametrize("command", ["echo 'root?'; exit 1", "sh lines.sh", "grep nothing lines.sh", "sh build.sh || true"])
def test_no_prompt_no_notice(env: SandboxedEnvironment, folder: str, command: str) -> None:
    done(env.write(f"{folder}/lines.sh", "while read -r l; do :; done\ncat x | read y\nexit 1\n"))
    done(env.write(f"{folder}/build.sh", ASKING.format(option="")))
    assert not text_of(env.run(command, cwd=folder, session=None), "input_ended")


def test_a_script_that_was_given_input_says_nothing(env: SandboxedEnvironment, folder: str) -> None:
    done(env.write(f"{folder}/build.sh", ASKING.format(option="") + "exit 1\n"))
    assert not text_of(env.run("sh build.sh", stdin="y\n", cwd=folder, session=None), "input_ended")


@pytest.mark.needs("python")
@pytest.mark.exhaustive
def test_a_port_in_use_names_the_command_that_holds_it(env: SandboxedEnvironment) -> None:
    """s47: the sandbox knew that c1 listens on the port, and did not say so."""
    code = "import socket; s = socket.create_server((\"127.0.0.1\", PORT)); print(s.getsockname()[1], flush=True); s.accept()"
    server = f"python3 -c '{code}'"
    holder = done(env.run(server.replace("PORT", "0"), background=True)).id
    try:
        port = done(env.wait_for(id=holder, log=r"(\d+)")).groups[0]
        said = text_of(env.run(server.replace("PORT", str(port)), session=None), "port_in_use")
        assert f"Port {port} is in use: {holder} (python3 -c" in said
        assert f"kill(id='{holder}')" in said
        done(env.run(f"sleep 0.1; {server.replace('PORT', str(port))}", background=True))
        after = seen_until(lambda: env.run("true", session=None), lambda answer: text_of(answer, "port_in_use") != "")
        assert f"Port {port} is in use: {holder}" in text_of(after, "port_in_use")
    finally:
        done(env.kill(holder))


@pytest.mark.needs("isolated")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sudo make install", "sudo: no command can become root"),
        ("cd /tmp && sudo apt-get install -y jq", "apt-get: system packages cannot be installed here"),
        ("apt-get install -y jq", "apt-get: system packages cannot be installed here"),
        ("systemctl start nginx", "no service manager"),
        ("docker ps", "no container engine"),
        ("unshare -r id", "does not allow mounts"),
        ("mount -t tmpfs none /mnt", "does not allow mounts"),
        ("ping -c 1 localhost", "no ICMP"),
        ("pip download --retries 0 --no-deps --index-url https://index.example.com/ x", "pip: packages cannot be installed here"),
    ],
)
def test_what_cannot_work_here_says_so(env: SandboxedEnvironment, command: str, said: str) -> None:
    """s31, s48, s23, s59: the program's own words invite sudo, chmod or another try."""
    answer = env.run(command, session=None)
    assert said in text_of(answer, "not_possible"), answer.to_text()


@pytest.mark.needs("isolated")
@pytest.mark.parametrize("command", ["echo sudo docker; false", "grep -r mount /nonexistent", "./docker.sh"])
def test_a_name_that_is_no_command_says_nothing(env: SandboxedEnvironment, command: str) -> None:
    assert not text_of(env.run(command, session=None), "not_possible")


def test_who_was_killed_for_memory_by_the_word_of_its_shell() -> None:
    """s26: a child was killed, the command ended with 0, and which child it was stood in its output only."""
    tail = b"bash: line 1:    12 Killed                  python3 hog.py --all\ndone\n"
    resources = SimpleNamespace(killed=[], max_rss_bytes=1000)
    command = SimpleNamespace(
        resources=resources, stop_reason=None, runner=SimpleNamespace(pid=5), started=0.0, output=SimpleNamespace(tail=lambda: tail)
    )
    processes = SimpleNamespace(memory_watch=SimpleNamespace(find_victim=lambda *_: None))
    assert limit_hits._victim(processes, command, certain=False) == {"pid": 12, "program": "python3", "rss_bytes": None}  # type: ignore[arg-type]
