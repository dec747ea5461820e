"""Tell systemd how a service is (``Type=notify``); without systemd this does nothing."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """Send a state as sd_notify(3) does: READY=1, STOPPING=1, STATUS=text."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
        try:
            sending.connect("\0" + address[1:] if address.startswith("@") else address)
            sending.sendall(state.encode())
        except OSError:  # it is no reason not to serve
            return
