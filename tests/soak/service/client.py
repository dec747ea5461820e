"""A client that uses sandboxes of its own over plain HTTP, and sends again with the same ids whatever a kill has cut off."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from random import Random
from typing import Any

import httpx

from .journal import Journal, Known
from .states import Doing

# A service that was killed is there again in a second or two.
PATIENCE_SECONDS = 180.0
MOST_SANDBOXES = 2
MOST_CHECKPOINTS = 2
PIECE_BYTES = 1 << 16
CUT = httpx.TransportError


class WrongError(Exception):
    """An answer that must not be."""


def check(fine: object, what: object) -> None:
    """Raise WrongError unless it is fine."""
    if not fine:
        raise WrongError(str(what)[:1000])


class Client:
    """One of them, until ``stop`` is set; what it knows is in ``known``."""

    def __init__(self, number: int, rng: Random, journal: Journal, url: str, key: str, image: str) -> None:
        self.name = f"client {number}"
        self.thread = threading.Thread(target=self._work, name=self.name, daemon=True)
        self.known: list[Known] = []
        self.stop = threading.Event()
        self._number, self._rng, self._journal, self._image = number, rng, journal, image
        self._http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60, trust_env=False)
        self._count = 0

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def _work(self) -> None:
        """Act until it is told to stop."""
        with closing(self):
            while not self.stop.is_set():
                action = self._chosen()
                name = action.__name__.lstrip("_")
                try:
                    action()
                    self._journal.acted(name)
                except WrongError as error:
                    self._journal.note(f"{self.name}, {name}: {error}")
                    return
                except Exception:  # noqa: BLE001
                    self._journal.note(f"{self.name}, {name}: {traceback.format_exc()[-1500:]}")
                    return

    def _chosen(self) -> Callable[[], None]:
        if len(self.known) < MOST_SANDBOXES and (not self.known or self._rng.random() < 0.3):
            return self._create
        actions = {
            self._run: 5, self._stream: 4, self._background: 2, self._upload: 4, self._write: 2, self._update: 1, self._pause: 3,
            self._checkpoint: 2, self._rollback: 2, self._delete_checkpoint: 1, self._fork: 2, self._delete: 1, self._look: 2,
        }  # fmt: skip
        return self._rng.choices(list(actions), list(actions.values()))[0]

    # --- asking ------------------------------------------------------------------
    def _new(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._number}-{self._count:05}"

    def ask(self, method: str, path: str, body: Any = None, *, again: tuple[int, ...] = (), **options: Any) -> httpx.Response:
        """Send a request until it is answered, also across kills; answers with a status in ``again`` do not count.

        A ``body`` that is a function returns what is sent, anew for each time.
        """
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            content = body() if callable(body) else None if body is None else json.dumps(body)
            try:
                answer = self._http.request(method, f"/v1{path}", content=content, **options)
            except CUT as error:
                problem = repr(error)
            else:
                if answer.status_code not in (503, *again):
                    return answer
                problem = answer.text
            check(time.monotonic() < until, f"{method} {path} is not answered: {problem}")
            self._journal.again[" ".join((method, *path.split("/")[3:]))] += 1
            time.sleep(0.2)

    def _doing(self, action: str, box: str = "", key: str = "", word: str = "") -> AbstractContextManager[Doing]:
        return self._journal.under_way(self._number, Doing(action, box, key, word))

    def _operate(self, box: Known, operation: str, body: dict[str, Any], word: str = "") -> dict[str, Any]:
        """Return the result of an operation that must succeed."""
        ident = self._new(operation)
        with self._doing("background" if "background" in body else operation, box.id, ident, word):
            answer = self.ask("POST", f"/sandboxes/{box.id}/{operation}", body, headers={"X-Request-Id": ident})
        check(answer.status_code == 200, answer.text)
        data = answer.json()
        check(data["tool_executed"] is True, data)
        result: dict[str, Any] = data["result"]
        return result

    def _one(self) -> Known:
        return self._rng.choice(self.known)

    # --- actions ------------------------------------------------------------------
    def _create(self) -> None:
        job = self._new("job")
        body = {"image": self._image, "limits": {"memory_bytes": 64 << 20}, "metadata": {"job": job}}
        key = self._new("create")
        with self._doing("create", key=key):
            answer = self.ask("POST", "/sandboxes", body, again=(409,), headers={"Idempotency-Key": key})
        check(answer.status_code == 201, answer.text)
        self.known.append(Known(answer.json()["id"], metadata={"job": job}))

    def _run(self) -> None:
        box, word = self._one(), self._new("w")
        result = self._operate(box, "run", {"command": f"echo {word} >> log; sleep 0.2; echo {word}"}, word)
        check(result["output"] == f"{word}\n", result)
        box.words.append(word)

    def _stream(self) -> None:
        """Follow the output as it comes, and go on after a cut from where it was cut off."""
        box, word, ident = self._one(), self._new("w"), self._new("stream")
        lines, pause = self._rng.randrange(1, 8), self._rng.choice((0.02, 0.2))
        command = f"echo {word} >> log; for i in $(seq {lines}); do echo {word} $i; sleep {pause}; done"
        expected = "".join(f"{word} {n}\n" for n in range(1, lines + 1)).encode()
        received, last = b"", None
        until = time.monotonic() + PATIENCE_SECONDS
        with self._doing("stream", box.id, ident, word):
            while True:
                headers = {"X-Request-Id": ident, "Accept": "text/event-stream"}
                headers |= {} if last is None else {"Last-Event-ID": last}
                try:
                    url, content = f"/v1/sandboxes/{box.id}/run", json.dumps({"command": command})
                    with self._http.stream("POST", url, content=content, headers=headers) as answer:
                        if answer.status_code == 503:
                            raise httpx.ReadError("the service is about to end")
                        if answer.status_code != 200:
                            answer.read()
                        check(answer.status_code == 200, f"{answer.status_code} from {last}")
                        for name, data, number in events(answer):
                            if name == "output":
                                check(data["offset"] == len(received), f"a piece at {data['offset']} after {len(received)} bytes")
                                received, last = received + base64.b64decode(data["data_base64"]), number
                            elif name == "envelope":
                                check(data["tool_executed"] is True, data)
                                check(received == expected, f"{received!r} was streamed, not {expected!r}")
                                check(data["result"]["output"].encode() == expected, data)
                                box.words.append(word)
                                return
                except CUT as error:
                    check(time.monotonic() < until, f"the stream is not answered: {error!r}")
                    self._journal.again["stream"] += 1
                    time.sleep(0.2)

    def _background(self) -> None:
        box, word = self._one(), self._new("late")
        command = f"for i in $(seq 12); do echo {word} $i; sleep 0.25; done"
        ident = self._operate(box, "run", {"command": command, "background": True}, word)["id"]
        check(ident not in box.late, f"{ident} was started twice")
        box.late[ident] = "".join(f"{word} {n}\n" for n in range(1, 13)).encode()

    def _upload(self) -> None:
        box, data = self._one(), self._rng.randbytes(self._rng.choice((10, 50_000, 3_000_000)))
        name = f"up{self._rng.randrange(3)}"
        options: dict[str, Any] = {"params": {"path": name}, "headers": {"X-Request-Id": self._new("upload")}}
        pause = self._rng.choice((0.0, 0.01))
        with self._doing("upload", box.id) as doing:
            answer = self.ask("PUT", f"/sandboxes/{box.id}/files", lambda: _pieces(data, pause, doing), **options)
        check(answer.status_code == 200 and answer.json()["tool_executed"], answer.text)
        box.files[name] = data
        got = self.ask("GET", f"/sandboxes/{box.id}/files", params={"path": name})
        check(got.status_code == 200 and got.content == data, f"{name} is not what was uploaded")

    def _write(self) -> None:
        box, word = self._one(), self._new("w")
        self._operate(box, "write", {"path": "note", "content": word})
        box.files["note"] = word.encode()
        check(self._operate(box, "read", {"path": "note"})["content"] == word, "the file that was written")

    def _update(self) -> None:
        box = self._one()
        box.metadata = {"job": self._new("job")}
        answer = self.ask("PATCH", f"/sandboxes/{box.id}", {"metadata": box.metadata, "time_to_live_seconds": 3000})
        check(answer.status_code == 200 and answer.json()["metadata"] == box.metadata, answer.text)

    def _pause(self) -> None:
        box = self._one()
        with self._doing("pause", box.id):
            answer = self.ask("POST", f"/sandboxes/{box.id}/pause")
        check(answer.status_code == 200 and answer.json()["state"] == "paused", answer.text)
        box.paused = True
        if self._rng.random() < 0.5:
            refused = self.ask("POST", f"/sandboxes/{box.id}/run", {"command": "true"})
            check(refused.json().get("code") == "sandbox_paused", refused.text)
            time.sleep(self._rng.uniform(0, 1))
        with self._doing("resume", box.id):
            answer = self.ask("POST", f"/sandboxes/{box.id}/resume")
        check(answer.status_code == 200 and answer.json()["state"] == "running", answer.text)
        box.paused = False

    def _checkpoint(self) -> None:
        box, name = self._one(), self._new("cp")
        self._quiet(box)
        if len(box.checkpoints) >= MOST_CHECKPOINTS:
            return
        made = self._operate(box, "checkpoint", {"name": name})
        check(made["id"] == name, made)
        box.checkpoints[name] = (list(box.words), dict(box.files))

    def _delete_checkpoint(self) -> None:
        box = self._one()
        if box.checkpoints:
            name = self._rng.choice(sorted(box.checkpoints))
            self._operate(box, "delete_checkpoint", {"id": name})
            del box.checkpoints[name]

    def _rollback(self) -> None:
        box = self._one()
        if box.checkpoints:
            self._quiet(box)
            name = self._rng.choice(sorted(box.checkpoints))
            self._operate(box, "rollback", {"id": name, "kill": True})
            words, files = box.checkpoints[name]
            box.words, box.files = list(words), dict(files)
            self.compare(box)

    def _fork(self) -> None:
        """Fork, compare the files, and delete the fork."""
        box = self._one()
        name = self._rng.choice([None, *sorted(box.checkpoints)])
        words, files = (box.words, box.files) if name is None else box.checkpoints[name]
        body = {} if name is None else {"checkpoint": name}
        key = self._new("fork")
        with self._doing("fork", box.id, key):
            answer = self.ask("POST", f"/sandboxes/{box.id}/fork", body, again=(409,), headers={"Idempotency-Key": key})
        check(answer.status_code == 201, answer.text)
        (made,) = answer.json()["items"]
        fork = Known(made["id"], metadata=box.metadata, words=list(words), files=dict(files))
        self.known.append(fork)
        self.compare(fork)
        self._remove(fork)

    def _delete(self) -> None:
        self._remove(self._one())

    def _remove(self, box: Known) -> None:
        """Delete it; one that a first request has deleted is not found any more."""
        with self._doing("delete", box.id):
            answer = self.ask("DELETE", f"/sandboxes/{box.id}")
        check(answer.status_code in (204, 404), answer.text)
        self.known.remove(box)
        check(self.ask("GET", f"/sandboxes/{box.id}").status_code == 404, f"{box.id} was deleted and is there")

    def _look(self) -> None:
        box = self._one()
        answer = self.ask("GET", f"/sandboxes/{box.id}")
        check(answer.status_code == 200, answer.text)
        found = answer.json()
        check((found["state"], found["metadata"]) == ("running", box.metadata), found)

    def _quiet(self, box: Known) -> None:
        """Wait for the commands that run by themselves, and compare what they have printed, to the last byte."""
        for ident, expected in box.late.items():
            self._operate(box, "wait_for", {"id": ident, "exit": True, "timeout_seconds": 60})
            logs = self._operate(box, "logs", {"id": ident})
            check(logs["content"].encode() == expected, f"{logs} is not {expected!r}")
        box.late.clear()

    def compare(self, box: Known) -> None:
        """Compare a sandbox with what its client knows: each word once and in order, each file with its bytes."""
        log = self._operate(box, "run", {"command": "cat log 2> /dev/null; true", "session": None, "keep_output_bytes": 1 << 20})
        check(log["output"].split() == box.words, f"the log of {box.id}: {_difference(log['output'].split(), box.words)}")
        for name, data in box.files.items():
            got = self.ask("GET", f"/sandboxes/{box.id}/files", params={"path": name})
            digests = [hashlib.sha256(each).hexdigest()[:12] for each in (got.content, data)]
            check(got.status_code == 200 and digests[0] == digests[1], f"{name} of {box.id}: {digests}")

    def finish(self, box: Known) -> None:
        """Compare everything of a sandbox at the end."""
        self._quiet(box)
        self.compare(box)
        listed = self._operate(box, "checkpoints", {})["checkpoints"]
        check(sorted(each["id"] for each in listed) == sorted(box.checkpoints), f"the checkpoints of {box.id}: {listed}")


def _pieces(data: bytes, pause: float, doing: Doing) -> Iterator[bytes]:
    """Yield a body, slowly, and note when all of it was taken."""
    doing.all_sent = False
    for start in range(0, len(data), PIECE_BYTES):
        time.sleep(pause)
        yield data[start : start + PIECE_BYTES]
    doing.all_sent = True


def _difference(found: list[str], expected: list[str]) -> str:
    lost = [word for word in expected if word not in found]
    more = [word for word in found if found.count(word) > expected.count(word)]
    return f"lost {lost}, more {more}" if lost or more else "another order"


def events(answer: httpx.Response) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield name, data and id of each event."""
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif not line and fields:
            yield fields["event"], json.loads(fields["data"]), fields.get("id", "")
            fields = {}
    raise httpx.ReadError("the stream ended before the envelope")
