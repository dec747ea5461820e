"""Connections of a kept sandbox whose pipe is cut: they end with it, and new ones work as soon as it stands again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandbox import DockerEnvironment, Limits, Network
from sandbox.testing import EngineProxy

from .observing import eventually
from .own_engine import MACHINE_ENGINE
from .serving import serving
from .test_engine_faults import _sockets_of_lost_engines
from .test_network import curl

__all__ = ["_sockets_of_lost_engines"]

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineProxy]:
    with EngineProxy(f"unix://{MACHINE_ENGINE}") as made:
        monkeypatch.setenv("DOCKER_HOST", made.address)
        yield made


def test_a_cut_ends_what_is_under_way_and_nothing_else(proxy: EngineProxy) -> None:
    limits = Limits(memory_bytes=256 << 20)
    with serving() as server:
        env = DockerEnvironment(limits=limits, network=Network.allow(server.rule), keep=True, keep_seconds=60.0).start()
        try:
            slow = curl(server.url(1 << 30), "--limit-rate 5M -o /dev/null")
            ident = env.run(slow, background=True, session=None).unwrap().id
            assert eventually(lambda: len(server.asked) == 1)
            proxy.cut("attach")
            assert env.wait_for(id=ident, exit=True, timeout_seconds=20).ok
            assert env.logs(ident).unwrap().exit_code in (18, 56)
            assert eventually(lambda: [one.why for one in env.connections] == ["the connection to the sandbox was cut"])
            for _ in range(3):
                assert env.run(curl(server.url(5))).unwrap().output == "xxxxx"
        finally:
            env.remove()
