"""A host's way to a kept sandbox through the door (see ``entrances``): hands standard input and output over, and waits."""

from __future__ import annotations

import socket
import sys

from . import kernel
from .loop.entrances import DOOR


def main() -> None:
    """Ends when the guest lets go; at once where nobody listens."""
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
