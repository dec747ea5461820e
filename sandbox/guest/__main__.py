"""Start the guest: read the host's HELLO, harden this process, start the launcher, serve.

The host sends first: a HELLO with {"protocol", "place", "isolated"}, {"keep"} if the sandbox may outlive its host (see
``loop.host_lease``), and {"stands_by"} until somebody acquires it. The guest answers with its own HELLO: {"protocol", "python"} and
the limits that the kernel enforces. If it cannot serve, it writes the reason to stderr and exits.
"""

from __future__ import annotations

import gc
import os
import select
import sys

from . import kernel
from .builtin import signal
from .commands.launch.spawner import Spawner, become_reaper
from .folders import prepare_folders
from .footprint import release_start
from .loop.context import Place
from .loop.reactor import Reactor
from .protocol import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from .commands.processes import Processes


# A host that sends no HELLO within this time is gone.
HELLO_SECONDS = 120.0
# Where a sandbox has the guest itself.
RUNTIME = b"/.gamebox"
# Exceptions that a malformed HELLO can raise.
_MALFORMED_HELLO = (wire.WireError, KeyError, TypeError, ValueError, AttributeError)


def main() -> None:
    """Serve the host on standard input and output until it leaves."""
    decoder = wire.Decoder(None)
    try:
        hello, rest = _read_hello(decoder)
        isolated = bool(hello["isolated"])
        place = _parse_place(hello["place"], (hello.get("disk") or {}).get("host_disk"))
    except _MALFORMED_HELLO as error:
        _refuse(error)
    out_fd = _take_pipe()
    if isolated:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        os.setgroups([])
        prepare_folders(hello.get("disk") or {}, place)
    os.environ.clear()
    become_reaper()
    reactor = Reactor()
    spawner = Spawner(reactor, place, isolated)
    try:
        processes = _serve(reactor, spawner, place, decoder, out_fd, hello, rest)
    except _MALFORMED_HELLO as error:  # a limit is missing, for example
        _refuse(error)
    gc.freeze()
    gc.enable()
    if isolated:
        release_start()
    if hello.get("stands_by") is True:
        processes.rehearse()
    code = reactor.run()
    if not isolated:
        processes.stop_all()
    os._exit(code)


def _refuse(error: Exception) -> NoReturn:
    print(f"the host's HELLO is malformed: {type(error).__name__}: {error}", file=sys.stderr)
    os._exit(3)


def _serve(
    reactor: Reactor,
    spawner: Spawner,
    place: Place,
    decoder: wire.Decoder,
    out_fd: int,
    hello: dict[str, Any],
    rest: list[tuple[int, int, bytes]],
) -> Processes:
    """Connect the parts, answer the HELLO and serve the frames in ``rest``, which came right behind it."""
    from .commands.processes import Processes
    from .loop.dispatch import Server, greeting
    from .loop.host_lease import lease_of
    from .loop.link import Link
    from .loop.requests import Requests
    from .loop.workers import Workers
    from .network.egress import Egress
    from .watch.lifetime import Lifetime
    from .watch.limits import find_browser, read_enforced_limits

    disk = hello.get("disk") or {}
    link = Link(reactor, out_fd, decoder.nonce or b"")
    processes = Processes(reactor, spawner, place)
    if disk.get("watched"):
        processes.watch_disk(disk)
    user = (place.uid, place.gid) if hello["isolated"] else None
    workers = Workers(int(place.limits["concurrent_actions"]), user)
    processes.lifetime = Lifetime(reactor, place.limits, processes.commands, workers.busy)
    lease = lease_of(hello, decoder.nonce or b"")
    requests = Requests(reactor, link, place, processes, workers, lease)
    listens = bool(hello["isolated"]) and place.limits.get("network") != "bridge"
    egress = Egress(reactor, link, processes, workers, listens, hello.get("names"), wire.INPUT_FD)
    server = Server(reactor, wire.INPUT_FD, decoder, link, processes, requests, egress, lease, bool(hello["isolated"]))
    _reap_orphans(reactor)
    bounded = [os.fsencode(folder) for folder in disk.get("bounded", ())]
    facts = read_enforced_limits(bounded)
    facts["links"] = [os.fsdecode(folder) for folder in (place.workspace, RUNTIME, *bounded) if os.path.islink(folder)]
    facts |= {"machine": kernel.MACHINE, "filtered": kernel.filter_program(kernel.MACHINE) is not None}
    server.about = {**facts, "shell": "" if processes.shell is None else processes.shell[0]}
    if hello["isolated"]:
        server.about |= find_browser()
    link.message(wire.Kind.HELLO, 0, {**greeting(), **server.about, **server.offer_shortcut()})
    for kind, channel, payload in rest:
        server.frame(kind, channel, payload)
    return processes


def _read_hello(decoder: wire.Decoder) -> tuple[dict[str, Any], list[tuple[int, int, bytes]]]:
    """Return the host's HELLO, and the frames that came right behind it."""
    while True:
        # Not without a limit: if the host dies before it sends HELLO, the input of a kept sandbox stays open forever.
        data = os.read(0, 65536) if select.select([0], [], [], HELLO_SECONDS)[0] else b""
        if not data:
            os._exit(0)
        frames = list(decoder.feed(data))
        if frames:
            kind, _, payload = frames[0]
            fields, _blob = wire.unpack_message(payload, exact=True)
            if kind != wire.Kind.HELLO or fields.get("protocol") != wire.PROTOCOL:
                print(f"the host speaks protocol {fields.get('protocol')}, this guest {wire.PROTOCOL}", file=sys.stderr)
                os._exit(3)
            return fields, frames[1:]


def _parse_place(fields: dict[str, Any], host_disk: str | None) -> Place:
    return Place(
        workspace=os.fsencode(fields["workspace"]),
        home=os.fsencode(fields["home"]),
        spill=os.fsencode(fields["spill"]),
        roots=tuple(os.fsencode(root) for root in fields["roots"]),
        uid=int(fields["uid"]),
        gid=int(fields["gid"]),
        limits=dict(fields["limits"]),
        interpreter=tuple(fields["interpreter"]) or (sys.executable,),
        launcher=str(fields["launcher"]),
        environ=dict(fields["environ"]),
        ca_bundle=fields.get("ca_bundle"),
        user=str(fields.get("user") or ""),
        any_user=fields.get("any_user") is True,
        read_roots=tuple(os.fsencode(root) for root in fields.get("read_roots") or ()),
        root_names=tuple(os.fsencode(name) for name in fields.get("root_names") or ()),
        host_disk=None if host_disk is None else os.fsencode(host_disk),
    )


def _take_pipe() -> int:
    """Move the pipe to other descriptors, so that nothing inherits it and a stray print cannot break it."""
    os.dup2(0, wire.INPUT_FD, inheritable=False)
    os.dup2(1, wire.OUTPUT_FD, inheritable=False)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return wire.OUTPUT_FD


def _reap_orphans(reactor: Reactor) -> None:
    """Reap the processes that killed runners leave to this process."""

    def reap(_: int) -> None:
        os.read(read, 4096)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass

    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    reactor.watch(read, 1, reap)


if __name__ == "__main__":
    main()
