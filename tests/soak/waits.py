"""Waits for what commands do, and their output as it comes."""

from __future__ import annotations

import threading
import time
from enum import StrEnum

from sandbox.errors import ErrorCode, SandboxError
from sandbox.pipe.watching import CancelToken

from .subject import Subject, check, in_thread

# What is waited for comes within a fraction of a second; the rest is the machine's.
PATIENCE_SECONDS = 30.0
SERVER = "exec python3 -u -m http.server --bind 127.0.0.1 0"


def for_a_line(s: Subject) -> None:
    word = s.rng.randrange(10**6)
    ident = s.env.run(f"echo one; sleep 0.1; echo port {word} open; sleep 0.1", background=True).unwrap().id
    seen = s.env.wait_for(id=ident, log=r"port (\d+)", timeout_seconds=PATIENCE_SECONDS).unwrap()
    check((seen.line, seen.groups, seen.offset) == (f"port {word} open", (str(word),), 4), seen)
    other = s.env.wait_for(id=ident, log="never", literal=True, timeout_seconds=PATIENCE_SECONDS)
    check(other.code is ErrorCode.command_ended, other)  # type: ignore[union-attr]


def for_a_file(s: Subject) -> None:
    name = s.new_name()
    s.env.run(
        f"mkdir -p $(dirname {name}); sleep 0.1; printf begun > {name}; sleep 0.1; printf ' ready' >> {name}",
        background=True,
    )
    path = f"/workspace/{name}"
    seen = s.env.wait_for(file=path, contains="ready", timeout_seconds=PATIENCE_SECONDS).unwrap()
    s.files[name] = b"begun ready"
    check(path.endswith(seen.path) and seen.path.endswith(name), seen)


def for_an_end(s: Subject) -> None:
    code = s.rng.randrange(200)
    ident = s.env.run(f"sleep 0.1; echo last; exit {code}", background=True).unwrap().id
    seen = s.env.wait_for(id=ident, exit=True, timeout_seconds=PATIENCE_SECONDS).unwrap()
    check((seen.running, seen.exit_code, seen.last_output) == (False, code, "last\n"), seen)


def for_a_port(s: Subject) -> None:
    server = s.env.run(SERVER, background=True).unwrap().id
    line = s.env.wait_for(id=server, log=r"port (\d+)", timeout_seconds=PATIENCE_SECONDS).unwrap()
    port = int(line.groups[0] or 0)
    seen = s.env.wait_for(port=port, id=server, timeout_seconds=PATIENCE_SECONDS).unwrap()
    check(seen.address.startswith("127.0.0.1"), seen)
    check(s.env.kill(server).unwrap().survivors == 0, server)
    gone = s.env.wait_for(port=port, timeout_seconds=0.2)
    check(gone.code is ErrorCode.not_ready, gone)  # type: ignore[union-attr]


def in_vain(s: Subject) -> None:
    seconds = s.rng.choice((0.1, 0.3, 0.6))
    options = s.rng.choice(({"port": 1}, {"file": "never"}))
    answer = s.timely(seconds, lambda: s.env.wait_for(**options, timeout_seconds=seconds))
    check(answer.code is ErrorCode.not_ready, answer)  # type: ignore[union-attr]


def given_up(s: Subject) -> None:
    token = CancelToken()
    timer = threading.Timer(0.1, token.cancel)
    timer.start()
    answer = s.timely(0.1, lambda: s.env.wait_for(file="never", timeout_seconds=60, cancel=token))
    timer.join()
    check(answer.code is ErrorCode.cancelled, answer)  # type: ignore[union-attr]


def followed(s: Subject) -> None:
    """By a thread, while this one does something else."""
    count, code, told = s.rng.choice((20, 3000)), s.rng.randrange(100), list[str]()
    pause = "sleep 0.01" if count == 20 else ":"
    source = f"i=0; while [ $i -lt {count} ]; do i=$((i+1)); echo é$i; {pause}; done; exit {code}"
    following = s.env.follow(s.env.run(source, background=True).unwrap().id)
    thread = in_thread(lambda: told.extend(chunk.text for chunk in following))
    check(s.env.run("echo meanwhile", session=None).unwrap().output == "meanwhile\n", "not meanwhile")
    thread.join(PATIENCE_SECONDS)
    check(not thread.is_alive(), "following did not end")
    check("".join(told) == "".join(f"é{n}\n" for n in range(1, count + 1)), f"followed {''.join(told)[-200:]!r}")
    check(following.ended is not None and following.ended.exit_code == code, following.ended)


def followed_no_more(s: Subject) -> None:
    if not s.sleeping:
        return
    token, ended, ident = CancelToken(), list[tuple[StrEnum, float]](), s.rng.choice(s.sleeping)

    def follow() -> None:
        try:
            for _ in s.env.follow(ident, cancel=token):
                pass
        except SandboxError as error:
            ended.append((error.code, time.monotonic()))

    thread = in_thread(follow)
    time.sleep(0.05)
    answer = s.timely(0.0, lambda: (token.cancel(), thread.join(PATIENCE_SECONDS), s.env.logs(ident))[2])  # type: ignore[func-returns-value]
    check([code for code, _ in ended] == [ErrorCode.cancelled], ended)
    check(answer.unwrap().running, "following no more ended the command")


def logs_followed(s: Subject) -> None:
    ident = s.env.run("echo a; sleep 0.2; echo b", background=True).unwrap().id
    text, offset, until = "", 0, time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        shown = s.env.logs(ident, offset=offset, follow=True, wait_seconds=5).unwrap()
        text, offset = text + shown.content, shown.next_offset
        if not shown.running and offset >= shown.total_bytes:
            break
    check(text == "a\nb\n", text)
    answer = s.timely(0.0, lambda: s.env.logs(ident, offset=offset, follow=True, wait_seconds=20))
    check(not answer.unwrap().content, answer)
