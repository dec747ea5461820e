"""Waits against real servers, and what an error says when they never come."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable

import pytest

from sandbox import DockerEnvironment, LocalEnvironment, SandboxError
from sandbox.errors import ErrorCode
from sandbox.ready import NotReadyError, wait_for_command, wait_for_file, wait_for_http, wait_for_log, wait_for_port
from tests.contract.checks import with_more_time

pytestmark = pytest.mark.engine
SERVER = "sleep 0.3; exec python3 -u -m http.server {port} --bind 127.0.0.1"


def background(env: DockerEnvironment, command: str) -> str:
    return env.run(command, background=True).unwrap().id


def not_ready(wait: Callable[[float], object], words: str, first: float) -> NotReadyError:
    """What ``wait`` raises. On a busy machine its last try may find out nothing: without the words it gets more seconds."""

    def error(seconds: float) -> NotReadyError:
        with pytest.raises(NotReadyError) as caught:
            wait(seconds)
        return caught.value

    return with_more_time(error, lambda error: words in error.message, first)


def test_a_port_is_waited_for(env: DockerEnvironment) -> None:
    server = background(env, SERVER.format(port=8011))
    assert "8011" not in env.run("cat /proc/net/tcp | grep -c ' 0A '").unwrap().output
    wait_for_port(env, 8011, command_id=server)
    assert env.browse("http://127.0.0.1:8011/").ok
    env.kill(server)


def test_an_ipv6_listener_counts(env: DockerEnvironment) -> None:
    code = "import socket,time; s=socket.create_server(('::1', 8012), family=socket.AF_INET6); time.sleep(60)"
    server = env.run(argv=["python3", "-c", code], background=True).unwrap().id
    wait_for_port(env, 8012, command_id=server, timeout_seconds=10)
    env.kill(server)


def test_a_port_needs_no_program_of_the_image() -> None:
    with LocalEnvironment(env={"PATH": "/nonexistent"}) as env:
        with socket.socket() as held:  # bound and not listening: nobody else's server can answer there meanwhile
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
            with pytest.raises(NotReadyError, match=f"port {port} is still not open"):
                wait_for_port(env, port, timeout_seconds=0.5)
        code = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); s.accept()[0].send(b'+OK'); time.sleep(60)"
        server = env.run(argv=[sys.executable, "-c", code], background=True).unwrap().id
        wait_for_port(env, port, command_id=server)


def test_a_port_that_stays_closed(env: DockerEnvironment) -> None:
    server = background(env, "echo starting up; sleep 60")
    wait_for_log(env, server, "starting up")
    started = time.monotonic()
    with pytest.raises(NotReadyError) as caught:
        wait_for_port(env, 8013, command_id=server, timeout_seconds=1)
    assert 1 <= time.monotonic() - started < 30
    assert caught.value.code is ErrorCode.not_ready
    assert "port 8013" in caught.value.message
    assert caught.value.logs == "starting up\n"
    assert "starting up" in str(caught.value)
    env.kill(server)


def test_a_server_that_dies_ends_the_wait(env: DockerEnvironment) -> None:
    server = background(env, "echo no such table >&2; exit 3")
    started = time.monotonic()
    with pytest.raises(NotReadyError, match="exit code 3, and port 8014 is not open"):
        wait_for_port(env, 8014, command_id=server, timeout_seconds=60)
    assert time.monotonic() - started < 30


def test_a_command_that_went_into_the_background_has_not_ended(env: DockerEnvironment) -> None:
    server = background(env, "(sleep 0.5; exec python3 -m http.server 8015 --bind 127.0.0.1) >log 2>&1 & exit 0")
    wait_for_port(env, 8015, command_id=server, timeout_seconds=20)
    env.kill(server)


def test_a_log_line_is_matched_whole(env: DockerEnvironment) -> None:
    server = background(env, "sleep 0.1; printf 'listening on 80'; printf '81\\n'; sleep 60")
    assert wait_for_log(env, server, r"listening on (\d+)")[1] == "8081"
    env.kill(server)


def test_a_prompt_without_an_end_is_matched(env: DockerEnvironment) -> None:
    server = background(env, "printf 'login: '; sleep 60")
    assert wait_for_log(env, server, r"login: $", timeout_seconds=10).start() == 0
    env.kill(server)


def test_the_last_words_of_a_command_are_matched(env: DockerEnvironment) -> None:
    server = background(env, "seq 30000; sleep 0.2; printf 'all done'")
    assert wait_for_log(env, server, r"^2999\d$", timeout_seconds=20)[0] == "29990"
    assert wait_for_log(env, server, r"done", timeout_seconds=20).string == "all done"
    with pytest.raises(NotReadyError, match="exit code 0, and no line of its output matches 'never'") as caught:
        wait_for_log(env, server, "never", timeout_seconds=20)
    assert caught.value.logs.endswith("all done")
    assert len(caught.value.logs) == 4096


def test_a_file_is_waited_for(env: DockerEnvironment) -> None:
    server = background(env, "sleep 0.3; mkdir -p out; : >out/pid; mkfifo out/pipe; sleep 60")
    wait_for_file(env, "out/pid", command_id=server)
    wait_for_file(env, "out/pipe")
    wait_for_file(env, "out")
    with pytest.raises(NotReadyError, match=r"out/none still does not exist\."):
        wait_for_file(env, "out/none", timeout_seconds=0.2)
    env.kill(server)


def test_a_file_made_by_the_last_act_of_a_command_counts(env: DockerEnvironment) -> None:
    server = background(env, "sleep 0.2; touch made")
    wait_for_file(env, "made", command_id=server)


def test_a_file_that_operations_may_not_touch_is_refused_at_once(env: DockerEnvironment) -> None:
    with pytest.raises(SandboxError) as caught:
        wait_for_file(env, "/etc/passwd", timeout_seconds=30)
    assert caught.value.code is ErrorCode.path_outside_roots


def test_http_waits_for_the_status(env: DockerEnvironment) -> None:
    env.make_dir("www").unwrap()
    server = env.run(SERVER.format(port=8016), cwd="www", background=True).unwrap().id
    assert wait_for_http(env, "http://127.0.0.1:8016/", command_id=server).status == 200
    assert wait_for_http(env, "http://127.0.0.1:8016/ok").status == 404
    words = "it answered with status 404"
    error = not_ready(
        lambda seconds: wait_for_http(
            env, "http://127.0.0.1:8016/ok", status=200, command_id=server, timeout_seconds=seconds
        ), words, 1.0,
    )  # fmt: skip
    assert words in error.message
    assert "GET /ok" in error.logs
    env.write("www/ok", "yes").unwrap()
    assert wait_for_http(env, "http://127.0.0.1:8016/ok", status=200).text == "yes"
    env.kill(server)


def test_a_command_is_tried_until_it_succeeds(env: DockerEnvironment) -> None:
    server = background(env, "sleep 0.3; echo 42 >new; mv new answer; sleep 60")
    assert wait_for_command(env, "cat answer", command_id=server).stdout == "42\n"
    assert wait_for_command(env, ["test", "-s", "answer"]).exit_code == 0
    failing = not_ready(lambda seconds: wait_for_command(env, "echo busy; exit 7", timeout_seconds=seconds), "exit code 7", 0.5)
    assert "exit code 7" in failing.message
    env.kill(server)


def test_a_try_that_hangs_does_not_outlast_the_wait(env: DockerEnvironment) -> None:
    started = time.monotonic()
    with pytest.raises(NotReadyError):
        wait_for_command(env, "sleep 60", timeout_seconds=1)
    assert time.monotonic() - started < 30


def test_a_sandbox_that_is_gone_is_not_waited_for() -> None:
    with DockerEnvironment() as env:
        env.close()
        with pytest.raises(SandboxError) as caught:
            wait_for_port(env, 8000, timeout_seconds=30)
    assert caught.value.code is ErrorCode.sandbox_closed


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_what_is_no_port_is_refused(env: DockerEnvironment, port: int) -> None:
    with pytest.raises(SandboxError, match=str(port)):
        wait_for_port(env, port)


def test_a_wait_of_no_time_is_refused(env: DockerEnvironment) -> None:
    with pytest.raises(SandboxError, match="timeout_seconds"):
        wait_for_file(env, "x", timeout_seconds=0)


def test_a_server_that_accepts_and_never_answers(env: DockerEnvironment) -> None:
    code = "import socket, time; s = socket.create_server(('127.0.0.1', 8017)); time.sleep(60)"
    server = env.run(argv=["python3", "-c", code], background=True).unwrap().id
    wait_for_port(env, 8017, command_id=server)
    started = time.monotonic()
    with pytest.raises(NotReadyError, match=r"8017/ answers"):
        wait_for_http(env, "http://127.0.0.1:8017/", command_id=server, timeout_seconds=1)
    assert time.monotonic() - started < 30
    env.kill(server)


def test_a_firehose_does_not_outlast_the_wait(env: DockerEnvironment) -> None:
    server = background(env, "yes")
    started = time.monotonic()
    with pytest.raises(NotReadyError, match="no line of its output matches 'never'") as caught:
        wait_for_log(env, server, "never", timeout_seconds=1)
    assert time.monotonic() - started < 30
    assert set(caught.value.logs) <= {"y", "\n"}
    env.kill(server)
