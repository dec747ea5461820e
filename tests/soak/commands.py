"""Commands of a sandbox under soak: each action with what must be true of its answer."""

from __future__ import annotations

import time
from pathlib import Path

from sandbox.errors import ErrorCode
from sandbox.pipe.watching import CancelToken

from .subject import Subject, check, in_thread


def exit_codes(s: Subject) -> None:
    code, text = s.rng.randrange(256), f"t{s.rng.randrange(10**6)}"
    answer = s.env.run(
        f"echo {text}; echo {text} >&2; exit {code}", session=s.rng.choice(("default", "other", None))
    ).unwrap()
    check((answer.exit_code, answer.stdout, answer.stderr) == (code, f"{text}\n", f"{text}\n"), answer)


def session(s: Subject) -> None:
    for name, value in s.variables.items():
        check(s.env.run(f"echo ${name}").unwrap().output == f"{value}\n", f"{name} is not {value} any more")
    name, value = f"V{s.rng.randrange(4)}", str(s.rng.randrange(10**6))
    s.env.run(f"export {name}={value}").unwrap()
    s.variables[name] = value


def timeout(s: Subject) -> None:
    seconds = s.rng.choice((0.1, 0.3, 0.6))
    source = s.rng.choice(
        (
            "echo so far; sleep 100",
            "echo so far; sleep 100 & sleep 100",
            "echo so far; trap '' TERM; while :; do :; done",
        )
    )
    answer = s.timely(seconds, lambda: s.env.run(source, timeout_seconds=seconds, session=None))
    check(answer.code is ErrorCode.timeout, answer)  # type: ignore[union-attr]
    check(answer.result is not None and answer.result.output in ("so far\n", ""), answer.result)
    s.census()


def background(s: Subject) -> None:
    if len(s.sleeping) < 8:
        s.sleeping.append(s.env.run("echo started; exec sleep 1000", background=True).unwrap().id)
    shown = s.env.logs(s.rng.choice(s.sleeping)).unwrap()
    check(shown.running, shown)


def background_ends(s: Subject) -> None:
    code = s.rng.randrange(1, 100)
    ident = s.env.run(f"echo some; exit {code}", background=True).unwrap().id
    until = time.monotonic() + 10
    while (shown := s.env.logs(ident).unwrap()).running and time.monotonic() < until:
        time.sleep(0.01)
    check((shown.exit_code, shown.content) == (code, "some\n"), shown)


def kill(s: Subject) -> None:
    if s.sleeping:
        ident = s.sleeping.pop(s.rng.randrange(len(s.sleeping)))
        answer = s.env.kill(ident).unwrap()
        s.lost(answer.collateral)
        check((answer.killed, answer.survivors) == (1, 0), answer)
        check(not s.env.logs(ident).unwrap().running, ident)
        s.census()


def typed_into(s: Subject) -> None:
    word = f"w{s.rng.randrange(10**6)}"
    started = s.env.run("read x; echo got $x", wait_seconds=0.05, session=None).unwrap()
    check(started.running, started)
    answer = s.env.send(started.id, f"{word}\n", wait_seconds=10).unwrap()
    check((answer.output, answer.exit_code) == (f"got {word}\n", 0), answer)


def terminal(s: Subject) -> None:
    word = f"w{s.rng.randrange(10**6)}"
    started = s.env.run("cat", pty=True, wait_seconds=0.05, session=None).unwrap()
    shown = s.env.send(started.id, f"{word}\n", wait_seconds=5).unwrap()
    check(shown.screen is not None and shown.screen.text.count(word) == 2, shown)
    ended = s.env.send(started.id, keys=["ctrl-d"], wait_seconds=5).unwrap()
    check(not ended.running or not s.env.send(started.id, wait_seconds=5).unwrap().running, ended)


def much_output(s: Subject) -> None:
    size = s.rng.choice((100_000, 3_000_000))
    answer = s.env.run(f"head -c {size} /dev/zero | tr '\\0' x", session=None).unwrap()
    check(answer.output_bytes == size and answer.truncated, answer.output_bytes)
    check(answer.output.startswith("xxx") and answer.output.endswith("xxx"), "no head and tail")


def watched(s: Subject) -> None:
    told: list[str] = []
    answer = s.env.run("seq 3000", session=None, on_output=lambda _, text: told.append(text)).unwrap()
    check("".join(told) == "".join(f"{n}\n" for n in range(1, 3001)), f"{len(told)} pieces")
    check(answer.exit_code == 0, answer)


def cancelled(s: Subject) -> None:
    token = CancelToken()
    thread = in_thread(lambda: (time.sleep(0.1), token.cancel(), None)[-1])  # type: ignore[func-returns-value]
    answer = s.timely(0.1, lambda: s.env.run("echo so far; sleep 100", session=None, cancel=token))
    thread.join()
    check(answer.code is ErrorCode.cancelled, answer)  # type: ignore[union-attr]
    s.census()


def once_only(s: Subject) -> None:
    name, ident = s.new_name(), f"id{s.rng.randrange(10**12)}"
    command = f"mkdir -p /workspace/{Path(name).parent}; echo line >> /workspace/{name}"
    for _ in range(2):
        check(s.env.run(command, session=None, request_id=ident).unwrap().exit_code == 0, name)
    s.files[name] = b"line\n"
    check(s.env.read(name).unwrap().content == "line\n", "carried out twice")


def census(s: Subject) -> None:
    s.census()
