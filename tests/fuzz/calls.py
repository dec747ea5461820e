"""The calls of the record, and how each is made."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from sandbox.envelope import Failure, Success
from sandbox.errors import SandboxError
from sandbox.pipe.watching import CancelToken
from sandbox.state.checkpoint import EMPTY
from sandbox.state.history import History

# Its output fills a larger pipe than usual, so that some of it is left when it ends.
LARGE_PIPE = "import fcntl, os; fcntl.fcntl(1, 1031, 1 << 20); os.write(1, bytes(1 << 20)); os.write(1, bytes(3 << 19))"
LONG = "x" * 3000 + "\n"
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("write", {"path": "a.txt", "content": "one\ntwo\nthree\ntwo\n", "request_id": "w1"}),
    ("write", {"path": "a.txt", "content": "one\ntwo\nthree\ntwo\n", "request_id": "w1"}),
    ("write", {"path": "deep/er/b.py", "content": "def f():\n    return 'ä €'\n"}),
    ("write", {"path": "../../etc/passwd", "content": "no"}),
    ("read", {"path": "a.txt"}),
    ("read", {"path": "a.txt", "start_line": 2, "end_line": 3, "numbered": True}),
    ("read", {"path": "a.txt", "offset": 4, "max_bytes": 3}),
    ("read", {"path": "missing"}),
    ("read", {"path": "/etc/passwd"}),
    ("read", {"path": "a.txt", "start_line": 99}),
    ("edit", {"path": "a.txt", "old_text": "three", "new_text": "four"}),
    ("edit", {"path": "a.txt", "old_text": "thre", "new_text": "4"}),
    ("edit", {"path": "a.txt", "old_text": "two", "new_text": "2"}),
    ("edit", {"path": "a.txt", "old_text": "two", "new_text": "2", "replace_all": True}),
    ("list", {"path": ".", "depth": 3}),
    ("list", {"path": ".", "max_entries": 1}),
    ("search", {"pattern": "o", "context_lines": 1}),
    ("search", {"pattern": "(", "literal": True, "glob": "*.py"}),
    ("search", {"pattern": "("}),
    ("make_dir", {"path": "folder"}),
    ("move", {"source": "a.txt", "target": "folder/c.txt"}),
    ("move", {"source": "deep", "target": "folder"}),
    ("delete", {"path": "folder"}),
    ("delete", {"path": "folder", "recursive": True}),
    ("run", {"command": "echo hello"}),
    ("run", {"command": "echo hello", "request_id": "r1", "env": {"A": "b"}, "cwd": "deep"}),
    ("run", {"argv": ["printf", "x"], "stdin": "typed", "session": None}),
    ("run", {"command": "printf out; printf err >&2; exit 3"}),
    ("run", {"command": "printf '\\377\\303'"}),
    ("run", {"command": f"printf '{LONG}'", "keep_output_bytes": 100}),
    ("run", {"command": "export B=c; f() { echo 1; }; cd deep", "session": "other"}),
    ("run", {"command": "sleep 9", "timeout_seconds": 0.1}),
    ("run", {"command": "kill -9 $$"}),
    ("run", {"argv": ["missing-program"]}),
    ("run", {"command": "echo there", "cwd": "nowhere"}),
    ("run", {"command": "sleep 30 & echo left", "session": None}),
    ("watch", {"command": "printf o; printf e >&2; seq 2000"}),
    ("run", {"command": "cat", "wait_seconds": 0.2, "session": "talk"}),
    ("logs", {"id": "c1"}),
    ("logs", {"id": "none"}),
    ("send", {"id": "TALK", "text": "typed\n", "wait_seconds": 0.3}),
    ("send", {"id": "c1", "text": "typed\n"}),
    ("wait_for", {"id": "TALK", "log": "a.*", "timeout_seconds": 0.1}),
    ("wait_for", {"id": "TALK", "log": "a", "literal": True, "offset": -5, "timeout_seconds": 0.1}),
    ("wait_for", {"file": "a.txt", "contains": "x", "timeout_seconds": 0.1}),
    ("wait_for", {"port": 1, "host": "127.0.0.1", "timeout_seconds": 0.1}),
    ("wait_for", {"id": "TALK", "exit": True, "timeout_seconds": 0.1}),
    ("wait_for", {"id": "c1", "exit": True}),
    ("logs", {"id": "TALK", "follow": True, "wait_seconds": 0.1, "tail_lines": 3}),
    ("processes", {}),
    ("processes", {"id": "TALK"}),
    ("usage", {}),
    ("kill", {"id": "TALK"}),
    ("run", {"command": "cat", "pty": True, "background": True, "rows": 5, "cols": 20}),
    ("send", {"id": "TERMINAL", "text": "ab\x1b[31mc", "keys": ["enter", "up"], "wait_seconds": 0.2}),
    ("resize", {"id": "TERMINAL", "rows": 6, "cols": 30}),
    ("resize", {"id": "TALK", "rows": 6, "cols": 30}),
    ("screen", {"id": "TERMINAL"}),
    ("screen", {"id": "c1"}),
    ("kill", {"id": "TERMINAL", "signal": "SIGINT"}),
    ("kill", {"id": "TERMINAL"}),
    ("kill", {"id": "c999"}),
    ("end_session", {"session": "other"}),
    ("upload", {"path": "up.bin", "size": 20}),
    ("upload", {"path": "up2.bin", "size": 600_000}),
    ("upload", {"path": "deep", "size": 20}),
    ("download", {"path": "up.bin"}),
    ("download", {"path": "deep"}),
    ("download", {"path": "gone"}),
    ("browse", {"url": "http://127.0.0.1:1/"}),
    ("browse", {"url": "http://example.com/"}),
    ("browse", {"url": "gopher:x"}),
    ("run", {"command": "sleep 0.5", "wait_seconds": 0.1, "session": "queue"}),
    ("run", {"command": "echo queued", "session": "queue"}),
    ("fed", {"command": "wc -c", "size": 300_000}),
    ("run", {"command": "truncate -s 3000000 big.bin"}),
    ("download", {"path": "big.bin"}),
    ("upload", {"path": "up3.bin", "size": 4_000_000}),
    ("upload_tree", {"path": "tree"}),
    ("watch", {"command": "head -c 3000000 /dev/zero", "keep_output_bytes": 1000}),
    ("watch", {"argv": ["python3", "-c", LARGE_PIPE], "keep_output_bytes": 1000}),
    ("cancelled", {"command": "echo a; sleep 30"}),
    ("paused", {"command": "echo a; sleep 0.3"}),
    ("run", {"command": "for i in 1 2 3; do echo $i; sleep 0.1; done", "background": True}),
    ("follow", {"id": "FOLLOWED"}),
    ("run", {"command": "rm -rf deep big.bin up*.bin tree; echo x > x.txt"}),
    ("changes", {}),
    ("last_changes", {}),
    ("checkpoint", {}),
    ("back", {"path": "x.txt"}),
]


def call(env: Any, method: str, args: dict[str, Any]) -> Any:
    """Make the call of an exchange."""
    special = _SPECIAL.get(method)
    return env.execute(method, args) if special is None else special(env, **args)


def _upload_tree(env: Any, path: str) -> Any:
    with tempfile.TemporaryDirectory(prefix="fuzz-tree-") as folder:
        Path(folder, "inner").mkdir()
        Path(folder, "inner", "a.txt").write_text("a\n", encoding="utf-8")
        return env.upload(folder, path)


def _cancelled(env: Any, command: str) -> Any:
    token = CancelToken()
    return env.run(command, on_output=lambda stream, text: token.cancel(), cancel=token)


def _paused(env: Any, command: str) -> Any:
    """Paused and resumed by what it prints first."""

    def pause(stream: str, text: str) -> None:
        env.pause()
        env.pause()
        assert not env.run("true").ok
        env.resume()
        env.resume()

    try:
        return env.run(command, on_output=pause)
    except SandboxError as error:
        return Failure.of(error)


def _follow(env: Any, id: str) -> Any:  # noqa: A002
    following = env.follow(id)
    try:
        for _ in following:
            pass
    except SandboxError as error:
        return Failure.of(error)
    return Success(following.ended)


def _state(env: Any) -> None:
    """Forget what is known of the files: the guest is asked for all of them, as in the record."""
    env.state.history.close()
    env.state.history = History(env.state.history.ask, env.state.history.limit, start=EMPTY)


def _changes(env: Any) -> Any:
    _state(env)
    return env.changes()


def _checkpoint(env: Any) -> Any:
    _state(env)
    return env.checkpoint("k")


def _back(env: Any, path: str) -> Any:
    """A checkpoint, a change, and back."""
    made = _checkpoint(env)
    if made.ok:
        made = env.write(path, "changed")
    return env.rollback("k", kill=True) if made.ok else made


_SPECIAL: dict[str, Any] = {
    "upload": lambda env, path, size: env.upload(bytes(size), path),
    "download": lambda env, path: env.download(path),
    "upload_tree": _upload_tree,
    "watch": lambda env, **args: env.run(**args, on_output=lambda stream, text: None),
    "fed": lambda env, command, size: env.run(command, stdin=bytes(size)),
    "cancelled": _cancelled,
    "paused": _paused,
    "follow": _follow,
    "changes": _changes,
    "last_changes": lambda env: env.changes("last"),
    "checkpoint": _checkpoint,
    "back": _back,
}
