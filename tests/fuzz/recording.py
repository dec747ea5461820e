"""Recording conversations: a real sandbox, real operations, and an ear on the pipe."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from sandbox import DockerEnvironment, Limits
from sandbox.docker.stream import AttachStream
from sandbox.guest import wire
from sandbox.guest.wire import Kind

from .conversations import MESSAGES, RECORD, Exchange, Frame

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
]


class Overheard(AttachStream):
    """The pipe, and every frame that goes over it as (whether it was sent, kind, channel, payload)."""

    def __init__(self, attached: Any) -> None:
        super().__init__(attached)
        self.heard: list[tuple[bool, int, int, bytes]] = []
        self._decoders = {True: wire.Decoder(None), False: wire.Decoder(None)}

    def send(self, data: memoryview, timeout_seconds: float) -> int:
        sent = super().send(data, timeout_seconds)
        self._hear(True, bytes(data[:sent]))
        return sent

    def receive(self, timeout_seconds: float) -> bytes | None:
        data = super().receive(timeout_seconds)
        self._hear(False, data or b"")
        return data

    def _hear(self, sent: bool, data: bytes) -> None:
        self.heard += [(sent, *frame) for frame in self._decoders[sent].feed(data)]


class Recorder(DockerEnvironment):
    """A sandbox whose pipe is listened to."""

    def _started(self, *args: Any) -> AttachStream:
        super()._started(*args)
        assert self._stream is not None
        self._stream.__class__ = Overheard
        overheard: Any = self._stream
        overheard.heard, overheard._decoders = [], {True: wire.Decoder(None), False: wire.Decoder(None)}
        return self._stream


def record() -> int:
    """Write the record anew; answers how many exchanges it has."""
    with Recorder(limits=Limits(memory_bytes=256 << 20)) as env:
        stream: Any = env._stream
        found = [_exchange("hello", {}, True, stream.heard)]
        ids: dict[str, str] = {}
        for method, args in CALLS:
            stream.heard.clear()
            given = {name: ids.get(value, value) if name == "id" else value for name, value in args.items()}
            answer = call(env, method, given)
            if args.get("session") == "talk":
                ids["TALK"] = answer.result.id
            if args.get("pty"):
                ids["TERMINAL"] = answer.result.id
            found.append(_exchange(method, given, answer.ok, stream.heard))
    RECORD.write_text("".join(json.dumps(e.to_json(), ensure_ascii=False) + "\n" for e in found), encoding="utf-8")
    return len(found)


def call(env: Any, method: str, args: dict[str, Any]) -> Any:
    """Make the call of an exchange."""
    if method == "upload":
        return env.upload(bytes(args["size"]), args["path"])
    if method == "download":
        return env.download(args["path"])
    if method == "watch":
        return env.run(**args, on_output=lambda stream, text: None)
    return env.execute(method, args)


def _exchange(method: str, args: dict[str, Any], ok: bool, heard: list[tuple[bool, int, int, bytes]]) -> Exchange:
    first = min(channel for _, kind, channel, _ in heard if kind in (Kind.REQUEST, Kind.HELLO))
    sides: dict[bool, list[Frame]] = {True: [], False: []}
    parts: dict[tuple[bool, int], bytes] = {}
    for sent, kind, channel, payload in list(heard):
        if kind == Kind.PART:
            parts[sent, channel] = parts.get((sent, channel), b"") + payload
            continue
        frame = Frame(kind, max(0, channel - first), payload)
        if kind in MESSAGES:
            fields, blob = wire.unpack_message(parts.pop((sent, channel), b"") + payload, exact=True)
            fields.pop("boot_id", None)  # of the machine
            frame = replace(frame, fields=fields, payload=blob)
        if kind not in (Kind.PING, Kind.PONG):
            sides[sent].append(frame)
    return Exchange(method, args, ok, tuple(sides[True]), tuple(sides[False]))
