"""What is done to a sandbox under soak, each action with what must be true of its answer."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sandbox.errors import ErrorCode
from sandbox.watching import CancelToken

from .subject import Subject, check, in_thread

Action = Callable[[Subject], None]


def write(s: Subject) -> None:
    name, text = s.known() if s.rng.random() < 0.3 else None, s.text()
    name = name or s.new_name()
    answer = s.env.write(name, text).unwrap()
    s.files[name] = text.encode()
    check(answer.size_bytes == len(text.encode()), answer)


def read(s: Subject) -> None:
    if name := s.known():
        answer = s.env.read(name).unwrap()
        data = s.files[name]
        check(answer.size_bytes == len(data), f"{name}: {answer.size_bytes} bytes, not {len(data)}")
        check(
            answer.binary or answer.truncated or answer.content == data.decode("utf-8", "replace"),
            f"{name} reads as something else",
        )


def edit(s: Subject) -> None:
    name = s.new_name()
    s.env.write(name, "one\nTOKEN\nthree\n").unwrap()
    check(s.env.edit(name, "TOKEN", "two").unwrap().replacements == 1, name)
    s.files[name] = b"one\ntwo\nthree\n"
    check(s.env.edit(name, "TOKEN", "x").code is ErrorCode.text_not_found, name)  # type: ignore[union-attr]


def listing(s: Subject) -> None:
    answer = s.env.list(".", depth=5, max_entries=10_000).unwrap()
    found = {e.path.removeprefix("./").removeprefix("/workspace/") for e in answer.entries if e.type == "file"}
    check(found == set(s.files), f"listed but for {sorted(found ^ set(s.files))[:5]}")


def search(s: Subject) -> None:
    name, word = s.new_name(), f"needle{s.rng.randrange(10**9)}"
    s.env.write(name, f"hay\n{word}\nhay\n").unwrap()
    s.files[name] = f"hay\n{word}\nhay\n".encode()
    matches = s.env.search(word, literal=True).unwrap().matches
    check([m.line for m in matches] == [2], matches)


def move(s: Subject) -> None:
    if name := s.known():
        target = s.new_name()
        s.env.make_dir(str(Path(target).parent)).unwrap()
        s.env.move(name, target).unwrap()
        s.files[target] = s.files.pop(name)


def delete(s: Subject) -> None:
    if name := s.known():
        s.env.delete(name).unwrap()
        del s.files[name]
        check(s.env.read(name).code is ErrorCode.path_not_found, name)  # type: ignore[union-attr]


def refused(s: Subject) -> None:
    outside = s.env.write("../../etc/motd", "x")
    check(outside.code is ErrorCode.path_outside_roots, outside)  # type: ignore[union-attr]
    none = s.env.run(argv=["no-such-program"])
    check(none.code is ErrorCode.program_not_found, none)  # type: ignore[union-attr]


def exit_codes(s: Subject) -> None:
    code, text = s.rng.randrange(256), f"t{s.rng.randrange(10**6)}"
    answer = s.env.run(
        f"echo {text}; echo {text} >&2; exit {code}", session=s.rng.choice(("default", "other", None))
    ).unwrap()
    check((answer.exit_code, answer.stdout, answer.stderr) == (code, f"{text}\n", f"{text}\n"), answer)


def sees_files(s: Subject) -> None:
    if name := s.known():
        answer = s.env.run(f"sha256sum < /workspace/{name}", session=None).unwrap()
        check(answer.output.split()[0] == hashlib.sha256(s.files[name]).hexdigest(), f"{name}: {answer.output}")


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


def transfer(s: Subject) -> None:
    name, data = s.new_name(), s.rng.randbytes(s.rng.choice((0, 1, 5000, 700_000)))
    s.env.upload(data, name).unwrap()
    s.files[name] = data
    check(s.env.download(name).unwrap().content == data, f"{name} came back otherwise")


def transfer_tree(s: Subject) -> None:
    with tempfile.TemporaryDirectory() as base:
        tree, back = Path(base, "tree"), Path(base, "back")
        (tree / "in").mkdir(parents=True)
        contents = {f"in/{n}": s.rng.randbytes(s.rng.randrange(3000)) for n in range(5)}
        for name, data in contents.items():
            (tree / name).write_bytes(data)
        s.env.upload(tree, "tree").unwrap()
        s.env.download("tree", back).unwrap()
        found = {str(p.relative_to(back)): p.read_bytes() for p in back.rglob("*") if p.is_file()}
        check(found == contents, sorted(found))
    s.env.delete("tree", recursive=True).unwrap()


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


def memory_hog(s: Subject) -> None:
    s.counts.injected("out of memory")
    answer = s.env.run("exec python3 -c 'x = bytearray(900 << 20)'", session=None, timeout_seconds=30).unwrap()
    check(answer.oom_killed, answer)
    # the kernel may have taken sleepers too: they are victims before the guest is
    s.sleeping = [ident for ident in s.sleeping if s.env.logs(ident).unwrap().running]


def fork_storm(s: Subject) -> None:
    s.counts.injected("fork storm")
    answer = s.env.run("f() { f | f & }; f; wait; sleep 100", session=None, timeout_seconds=0.5)
    check(not answer.ok and answer.code in (ErrorCode.timeout, ErrorCode.too_many_processes), answer)
    s.heard(answer)
    s.census()


def disk_filler(s: Subject) -> None:
    s.counts.injected("disk full")
    answer = s.env.run("head -c 2G /dev/zero > /tmp/full; rm -f /tmp/full", session=None, timeout_seconds=60).unwrap()
    check("No space left" in answer.stderr, answer)


def census(s: Subject) -> None:
    s.census()


# The figure is how often, one beside the other.
ACTIONS: dict[Action, int] = {
    write: 10, read: 14, edit: 4, listing: 3, search: 3, move: 3, delete: 3, refused: 2, exit_codes: 12, sees_files: 6, session: 4,
    timeout: 3, background: 5, background_ends: 3, kill: 4, typed_into: 3, terminal: 2, transfer: 6, transfer_tree: 2,
    much_output: 3, watched: 2, cancelled: 2, once_only: 3, memory_hog: 1, fork_storm: 1, disk_filler: 1, census: 3,
}  # fmt: skip
