"""Images with next to nothing in them: the guest brings its own interpreter, and what an image lacks is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import pytest

from sandbox import CancelToken, DockerEnvironment, Limits
from sandbox.errors import ErrorCode
from sandbox.pipe.watching import Watch
from sandbox.readers import hint_for
from tests.contract.checks import with_more_time

from .made_images import BARE_FOLDERS, busybox_image, import_image, remove_image, static_busybox
from .observing import eventually

MAKE = Callable[..., DockerEnvironment]
SMALL = Limits(memory_bytes=256 << 20)
BUSYBOX = static_busybox()
pytestmark = pytest.mark.engine
needs_busybox = pytest.mark.skipif(BUSYBOX is None, reason="no static busybox here (Debian: busybox-static)")
PAGE = "<html><head><title>Small</title></head><body><p>served inside</p><a href='/x'>more</a></body></html>"
TOOLS = "sh cat ls echo sleep grep env pwd id head tail wc seq kill ps mkdir rm httpd nohup setsid true false printf"


@pytest.fixture(scope="module")
def busybox(client: docker.DockerClient) -> Iterator[str]:
    """A shell and its tools, no bash, no python, no ripgrep, no /etc/passwd: what alpine is like."""
    assert BUSYBOX is not None
    made = busybox_image(client, BUSYBOX, TOOLS.split())
    yield made
    remove_image(client, made)


@pytest.fixture(scope="module")
def empty(client: docker.DockerClient) -> Iterator[str]:
    """Folders, and not one program."""
    made = import_image(client, {}, folders=BARE_FOLDERS)
    yield made
    remove_image(client, made)


@needs_busybox
def test_commands_with_a_plain_shell(docker_env: MAKE, busybox: str) -> None:
    env = docker_env(busybox, limits=SMALL)
    assert "uid=1000 gid=1000" in env.run("id").unwrap().output
    env.run("cd /tmp; export A='it''s \"two\" lines\nlong' B=plain").unwrap()
    assert env.run('echo "$A $B"; pwd').unwrap().output == 'its "two" lines\nlong plain\n/tmp\n'
    assert env.run("exit 7").unwrap().exit_code == 7
    assert env.run("if then").unwrap().exit_code not in {0, None}
    assert env.run("echo $B").unwrap().output == "plain\n"
    assert env.run("not-there").unwrap().exit_code == 127
    assert env.run(argv=["not-there"]).code is ErrorCode.program_not_found  # type: ignore[union-attr]
    assert env.run("cat", stdin="input").unwrap().output == "input"
    assert env.run("seq 100000", keep_output_bytes=1000).unwrap().truncated
    late = with_more_time(
        lambda seconds: env.run(
            "trap '' TERM; echo said; setsid sleep 100 & nohup sleep 100 & sleep 100", timeout_seconds=seconds
        ),
        lambda answer: answer.result is not None and "said" in answer.result.output, 0.5,
    )  # fmt: skip
    assert late.code is ErrorCode.timeout  # type: ignore[union-attr]
    assert late.result is not None
    assert "said" in late.result.output
    assert env.run("ps | grep -c '[s]leep'").unwrap().output == "0\n"


@needs_busybox
def test_files_search_and_pages_with_a_plain_shell(docker_env: MAKE, busybox: str) -> None:
    env = docker_env(busybox, limits=SMALL)
    env.write("a/b.txt", "one\ntwo needle\nthree\n").unwrap()
    assert env.edit("a/b.txt", "three", "four").ok
    assert env.read("a/b.txt").unwrap().content.endswith("four\n")
    found = env.search("nee+dle", path=".").unwrap()
    assert [(m.path, m.line, m.text) for m in found.matches] == [("a/b.txt", 2, "two needle")]
    assert found.engine == "builtin"
    assert env.upload(b"bytes", "up").ok
    assert env.download("up").unwrap().content == b"bytes"
    env.write("index.html", PAGE).unwrap()
    env.run("httpd -f -p 127.0.0.1:8080 -h /workspace", background=True).unwrap()
    env.wait_for_port(8080).unwrap()
    page = env.browse("http://127.0.0.1:8080/").unwrap()
    assert page.status == 200
    assert page.title == "Small"
    assert "served inside" in page.text
    assert [link.text for link in page.links] == ["more"]


@needs_busybox
def test_a_search_that_would_take_for_ever_ends_when_it_is_given_up(docker_env: MAKE, busybox: str) -> None:
    """After 30 s it ends by itself, see tests/guest/files/test_search.py."""
    env = docker_env(busybox, limits=SMALL)
    env.write("slow.txt", "a" * 60 + "b\n").unwrap()
    searching, token = "ps | grep -c '[s]earch_builtin'", CancelToken()

    def give_up() -> None:
        eventually(lambda: env.run(searching).unwrap().output != "0\n")
        token.cancel()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(give_up)
        answer = env.execute("search", {"pattern": "(a+)+$", "path": "slow.txt"}, watch=Watch(cancel=token))
    assert answer.code is ErrorCode.cancelled  # type: ignore[union-attr]
    assert eventually(lambda: env.run(searching).unwrap().output == "0\n")


def test_an_empty_image(docker_env: MAKE, empty: str, tmp_path: Path) -> None:
    env = docker_env(empty, limits=SMALL)
    answer = env.run("echo x")
    assert answer.code is ErrorCode.shell_not_found  # type: ignore[union-attr]
    assert "argv" in hint_for("host", answer.hint)  # type: ignore[union-attr]
    assert env.run(argv=["true"]).code is ErrorCode.program_not_found  # type: ignore[union-attr]
    env.write("a/file", "text needle\n").unwrap()
    assert env.read("a/file").unwrap().content == "text needle\n"
    assert env.search("needle").unwrap().matches[0].path == "a/file"
    assert [e.path for e in env.list(".").unwrap().entries] == ["a"]
    assert env.browse("http://127.0.0.1:9/").code is ErrorCode.connection_failed  # type: ignore[union-attr]
    assert env.download("a", to=tmp_path / "a").ok
    if BUSYBOX is not None:  # a program that is uploaded runs
        env.upload(BUSYBOX, "busybox").unwrap()
        ran = env.run(argv=["/workspace/busybox", "echo", "hello"])
        assert ran.unwrap().output == "hello\n"
        assert env.run(argv=["/workspace/busybox", "sleep", "100"], timeout_seconds=0.3).code is ErrorCode.timeout  # type: ignore[union-attr]
