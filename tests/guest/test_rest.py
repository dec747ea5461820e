"""What a guest holds in memory before its first file operation: the modules that it has imported by then."""

import os
import subprocess
import sys
from pathlib import Path

from sandbox.guest.protocol import wire
from sandbox.guest.protocol.wire import Kind
from sandbox.limits import Limits
from sandbox.local.launcher import find_launcher

GUEST = Path(__file__).parents[2] / "sandbox" / "guest"
NONCE = b"12345678"
# Each of them brings others along. The guest has the few names it needs of them from ``guest/builtin``.
EXPENSIVE = {
    "collections", "contextlib", "dataclasses", "enum", "functools", "hashlib", "importlib", "json", "logging", "queue", "random",
    "re", "runpy", "selectors", "shlex", "signal", "socket", "subprocess", "tempfile", "threading", "traceback", "typing",
    "warnings", "weakref",
}  # fmt: skip
# Families of operations that are imported when one of them is first asked for.
ON_DEMAND = {"files.roots", "files.reading", "interaction.wait_for", "network.tunnels", "pages.browse", "state.scanning"}
PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
end = os._exit
def report(code):
    sys.stderr.write(chr(10).join(["modules:", *sys.modules]))
    sys.stderr.flush()
    end(code)
os._exit = report
from gamebox_guest.__main__ import main
main()
"""


def test_a_guest_at_rest_has_imported_nothing_expensive(tmp_path: Path) -> None:
    (tmp_path / "gamebox_guest").symlink_to(GUEST)
    work = str(tmp_path)
    place = {
        "workspace": work, "home": work, "spill": work, "roots": [work], "uid": os.getuid(), "gid": os.getgid(),
        "interpreter": [sys.executable], "launcher": str(find_launcher()), "environ": {"PATH": os.environ["PATH"]},
        "limits": {**{f: getattr(Limits(), f) for f in Limits.__dataclass_fields__}, "network": "none", "tell_changes": True},
    }  # fmt: skip
    hello = wire.pack_message({"protocol": wire.PROTOCOL, "place": place, "isolated": False})
    run = {"command": "true", "session": "default", "keep_output_bytes": 1000, "timeout_seconds": 60}
    request = wire.pack_message({"operation": "run", "args": run})
    argv = [sys.executable, "-I", "-S", "-c", PROGRAM, work]
    decoder, reply = wire.Decoder(NONCE), None
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(wire.frame(NONCE, 0, Kind.HELLO, 0, hello) + wire.frame(NONCE, 1, Kind.REQUEST, 1, request))
        process.stdin.flush()
        while reply is None:
            for kind, _, payload in decoder.feed(os.read(process.stdout.fileno(), 65536)):
                reply = wire.unpack_message(payload)[0] if kind == Kind.REPLY else reply
        process.stdin.close()
        _, _, names = process.stderr.read().decode().partition("modules:\n")
    assert reply["result"]["exit_code"] == 0
    modules = set(names.split("\n"))
    assert {"gamebox_guest.commands.run", "gamebox_guest.builtin"} <= modules
    assert sorted(modules & EXPENSIVE) == []
    assert sorted(modules & {f"gamebox_guest.{name}" for name in ON_DEMAND}) == []
