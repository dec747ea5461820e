"""A client keeps a journal while its service is killed again and again: nothing acknowledged is lost, nothing is done twice."""

from __future__ import annotations

import collections
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import Limits, RemoteEnvironment
from sandbox.errors import SandboxError
from tests.integration.observing import eventually
from tests.integration.own_engine import IMAGE
from tests.servers.gamebox_service import ServiceProcess

pytestmark = [pytest.mark.engine, pytest.mark.exhaustive, pytest.mark.usefixtures("engine")]
KILLS, CLIENTS = 5, 3


@pytest.fixture
def mortal(place: Path, tmp_path: Path) -> Iterator[ServiceProcess]:
    service = ServiceProcess(tmp_path / "data").start()
    yield service
    service.stop()


class Client(threading.Thread):
    """Runs, writes and uploads until it is told to stop; ``done`` are the words of the runs that were answered."""

    def __init__(self, env: RemoteEnvironment, number: int, stop: threading.Event) -> None:
        super().__init__(name=f"client {number}")
        self.env, self.number, self.stopping = env, number, stop
        self.done: list[str] = []
        self.failed: list[str] = []

    def run(self) -> None:
        kinds = (self._run, self._watched, self._upload, self._write)
        for count in range(1_000_000):
            if self.stopping.is_set():
                return
            word = f"{self.number}-{count}"
            try:
                kinds[count % len(kinds)](word)
            except SandboxError as error:
                self.failed.append(f"{word}: {error}")

    def _run(self, word: str) -> None:
        self.env.run(f"echo {word} >> log{self.number}", session=None).unwrap()
        self.done.append(word)

    def _watched(self, word: str) -> None:
        told: list[str] = []
        command = f"echo {word} >> log{self.number}; sleep 0.3; echo {word}"
        self.env.run(command, session=None, on_output=lambda _, text: told.append(text)).unwrap()
        assert "".join(told) == f"{word}\n"
        self.done.append(word)

    def _upload(self, word: str) -> None:
        data = os.urandom(200_000)
        self.env.upload(data, f"up{self.number}").unwrap()
        assert self.env.download(f"up{self.number}").unwrap().content == data, word

    def _write(self, word: str) -> None:
        self.env.write(f"file{self.number}", word).unwrap()
        assert self.env.read(f"file{self.number}").unwrap().content == word


def test_nothing_is_lost_and_nothing_done_twice(mortal: ServiceProcess) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    chance, stop = random.Random(seed), threading.Event()
    options = {"limits": Limits(memory_bytes=64 << 20), "url": mortal.url, "api_key": mortal.key}
    with RemoteEnvironment(IMAGE, **options) as env:  # type: ignore[arg-type]
        clients = [Client(env, number, stop) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.2, 2.0))
            mortal.kill()
            time.sleep(chance.uniform(0.0, 0.3))
            mortal.start()
        time.sleep(1)
        assert eventually(lambda: sum(len(client.done) for client in clients) > CLIENTS * KILLS, 60)
        stop.set()
        for client in clients:
            client.join()
        written = env.run("cat log*", keep_output_bytes=1 << 20).unwrap().output.split()
    counts = collections.Counter(written)
    answered = [word for client in clients for word in client.done]
    # A download that was cut off says so, and may be asked for again.
    assert not [each for client in clients for each in client.failed if "transfer_incomplete" not in each]
    assert len(answered) > CLIENTS * KILLS
    assert not [word for word in answered if not counts[word]], "lost"
    assert not [word for word, count in counts.items() if count > 1], "done twice"
