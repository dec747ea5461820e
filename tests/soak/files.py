"""Files of a sandbox under soak: each action with what must be true of its answer."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from sandbox.errors import ErrorCode

from .subject import MIB, Subject, check

# What this process remembers of one sandbox's files.
MOST_BYTES = 12 * MIB


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


def sees_files(s: Subject) -> None:
    if name := s.known():
        answer = s.env.run(f"sha256sum < /workspace/{name}", session=None).unwrap()
        check(answer.output.split()[0] == hashlib.sha256(s.files[name]).hexdigest(), f"{name}: {answer.output}")


def transfer(s: Subject) -> None:
    size = s.rng.choice((0, 1, 5000, 700_000))
    if sum(map(len, s.files.values())) > MOST_BYTES:
        size = min(size, 5000)
    name, data = s.new_name(), s.rng.randbytes(size)
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
