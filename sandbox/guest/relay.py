"""Connect a host to a kept sandbox through the door (see ``loop.entrances``): hand over standard input and output, and wait."""

from __future__ import annotations

import socket
import sys

from . import kernel
from .protocol.constants import DOOR


def main() -> None:
    """Run until the guest closes the connection; exit at once if no guest listens."""
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        try:
            door.connect(DOOR)
        except OSError as error:
            sys.exit(f"no guest is at the door: {error.strerror}")
        socket.send_fds(door, [b"relay"], [0, 1])
        door.recv(1)


if __name__ == "__main__":
    main()
