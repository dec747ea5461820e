"""Which command's connection was refused."""

from __future__ import annotations

import contextlib
import os
import socket

from sandbox.guest.network.refusals import sockets_of


def test_a_connection_is_found_by_both_its_whole_addresses() -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        victim = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = victim.getsockname()[1]
        other = stack.enter_context(socket.socket())
        other.bind(("127.0.0.2", port))  # the port that somebody else listens on
        other.connect(server.getsockname())
        mapped = stack.enter_context(socket.socket(socket.AF_INET6))
        mapped.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
        clients = []
        for _ in (other, mapped):
            accepted, client = server.accept()
            stack.enter_context(accepted)
            clients.append((client, server.getsockname()))
        nobody = (("127.0.0.1", port), server.getsockname())
        inodes = [str(os.fstat(sock.fileno()).st_ino) for sock in (other, mapped)]
        uid = os.getuid()
        assert sockets_of([*clients, nobody]) == dict(zip(clients, [(inode, uid) for inode in inodes], strict=True))
