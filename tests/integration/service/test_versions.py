"""A service finds the sandboxes of the version before it: with an older guest it serves them, with another protocol it refuses to.

``tests/formats/guest-3.tar.xz`` is the guest as a version before this one had it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.own_engine import IMAGE
from tests.servers.gamebox_service import ServiceProcess

from .api import Api

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]
RECORDED = Path(__file__).parents[2] / "formats" / "guest-3.tar.xz"
# The service of another version: the same host with the guest that was recorded, which speaks the protocol ``speaks``.
OTHER = """
import sys, tarfile
from sandbox.docker.images import runtime

speaks = {speaks}
with tarfile.open({recorded!r}) as tar:
    files = {{each.name: tar.extractfile(each).read() for each in tar}}
wire = runtime.GUEST_PACKAGE + "/protocol/wire.py"
files[wire] = files[wire].replace(b"PROTOCOL = 3\\n", b"PROTOCOL = %d\\n" % speaks)
changes = runtime.GUEST_PACKAGE + "/state/changes.py"  # its library was not recorded; without it Python does the same
files[changes] = files[changes].replace(b"tree_states.so", b"not-recorded.so")
runtime.guest_files = lambda: files
runtime.recall, runtime.remember = lambda: None, lambda *_: None  # what it recalls is of the files that are installed

from sandbox.guest.protocol import wire
from sandbox.docker.kept import inventory, kept, labels
from sandbox.service.operators import versions

for module in (wire, inventory, kept, labels, versions):
    if hasattr(module, "PROTOCOL"):
        module.PROTOCOL = speaks
from agent.cli.app import main

main(sys.argv[1:])
"""


@pytest.fixture
def service_of(place: Path, tmp_path: Path) -> Iterator[Callable[..., ServiceProcess]]:
    """What makes services with the same data: of this version, or of another that speaks a protocol."""
    made: list[ServiceProcess] = []

    def make(*options: str, speaks: int | None = None) -> ServiceProcess:
        program = None if speaks is None else OTHER.format(speaks=speaks, recorded=str(RECORDED))
        made.append(ServiceProcess(tmp_path / "data", *options, program=program))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def test_sandboxes_with_an_older_guest_are_served(service_of: Callable[..., ServiceProcess]) -> None:
    older = service_of(speaks=3).start()
    with Api(older) as api:
        ident = api.create(image=IMAGE)
        api.run(ident, "echo kept > kept.txt")
        late = api.run(ident, "sleep 1; echo late", background=True)["result"]["id"]
    older.kill()
    with Api(service_of("--stop-all").start()) as api:
        assert api.run(ident, "cat kept.txt")["result"]["output"] == "kept\n"
        body = {"path": "kept.txt", "content": "new"}
        assert api.call("POST", f"/sandboxes/{ident}/write", body)["tool_executed"]
        waited = api.call("POST", f"/sandboxes/{ident}/wait_for", {"id": late, "exit": True, "timeout_seconds": 20})
        assert waited["tool_executed"], waited
        assert "late" in api.call("POST", f"/sandboxes/{ident}/logs", {"id": late})["result"]["content"]
        api.call("POST", f"/sandboxes/{ident}/pause")
        api.call("POST", f"/sandboxes/{ident}/resume")
        again = api.run(ident, "cat kept.txt")
        assert again["result"]["output"] == "new", again


def test_with_another_protocol_it_refuses_until_the_older_one_is_drained(
    service_of: Callable[..., ServiceProcess], tmp_path: Path
) -> None:
    older = service_of(speaks=1).start()
    with Api(older) as api:
        ident = api.create(image=IMAGE)
    older.kill()
    with pytest.raises(AssertionError, match=r"1 of gamebox .* \(protocol 1\)\.[^.]*\n.*serve --drain"):
        service_of().start()

    drained = service_of("--drain", speaks=1).start()
    with Api(drained) as api:
        assert api.run(ident, "echo on")["result"]["output"] == "on\n"
        problem = api.call("POST", "/sandboxes", {"image": IMAGE}, status=503)
        assert (problem["code"], problem["retryable"]) == ("draining", True)
        api.call("DELETE", f"/sandboxes/{ident}", status=204)
    assert drained.process is not None
    assert drained.process.wait(timeout=30) == 0
    with Api(service_of().start()) as api:
        assert api.call("GET", "/sandboxes")["items"] == []
