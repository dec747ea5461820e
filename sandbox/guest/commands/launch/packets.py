"""The packets between the guest and the launcher; ``launcher.c`` says what they mean. Both ends have the same byte order."""

from __future__ import annotations

import os
import struct

from ...builtin import socket
from ...protocol.faults import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...users import User

STATUS = struct.Struct("=cIBdQ")
EMPTY = struct.Struct("=cdQ")
KILLED = struct.Struct("=cIQ16s")
READY = struct.Struct("=cI")
UNUSED = struct.Struct("=cI")
FAILURE = struct.Struct("=cBi")
STAGES = ("start", "cwd", "exec")
SETTING = struct.Struct("=BB")
HEADER = struct.Struct("=IiIIIIII")
ANNOUNCE, TERMINAL, FOLDER_IN_DESCRIPTOR = 1, 2, 4
# A longer one is sent as a file in memory.
SPEC_IN_PACKET = 32768
SPEC_IN_FILE = b"F"
REFILL = b"R"
NEXT = b"N"
GO = b"C"
_NONE = -1
_FD = struct.Struct("@i")


def send(sock: socket.socket, packet: bytes, descriptors: Sequence[int]) -> None:
    """Send a packet with descriptors. Raises OSError."""
    rights = struct.pack(f"@{len(descriptors)}i", *descriptors)
    sock.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def receive(sock: socket.socket) -> tuple[bytes, tuple[int, ...]]:
    """Return a packet of at most 64 bytes and the descriptor that came with it, if any. Raises OSError."""
    data, ancillary, _, _ = sock.recvmsg(64, socket.CMSG_LEN(_FD.size), socket.MSG_CMSG_CLOEXEC)
    return data, tuple(_FD.unpack(rights)[0] for _, _, rights in ancillary if len(rights) == _FD.size)


def parse_resources(packet: bytes) -> tuple[float, int]:
    """Return the processor seconds and the largest resident size in KiB in a packet of the kinds X and Z."""
    seconds, kib = EMPTY.unpack(packet)[1:] if packet[:1] == b"Z" else STATUS.unpack(packet)[3:]
    return seconds, kib


class Spec:
    """What a leader is to start: a program with its variables, in the folder ``cwd`` or that of a descriptor if it is None.

    ``user`` is None for the sandbox's own user. ``state_fd`` is the number by which the command knows the file for its shell's
    state. Raises Fault ``invalid_arguments`` for text that no program can be given.
    """

    __slots__ = ("_counts", "_flags", "_strings", "state_fd", "user")

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        *,
        state_fd: int | None = None,
        user: User | None = None,
        announce: bool = False,
        terminal: bool = False,
    ) -> None:
        strings = [cwd or "", *argv, *[f"{name}={value}" for name, value in env.items()]]
        try:
            self._strings = os.fsencode("\0".join(strings)) + b"\0"
        except UnicodeEncodeError as error:
            problem = "a character that no program can be given in the command, its folder or its environment"
            raise Fault("invalid_arguments", problem=problem) from error
        if self._strings.count(0) != len(strings):
            raise Fault("invalid_arguments", problem="a NUL character in the command, its folder or its environment")
        self._counts = (len(argv), len(env), len(self._strings))
        self._flags = ANNOUNCE * announce | TERMINAL * terminal | FOLDER_IN_DESCRIPTOR * (cwd is None)
        self.state_fd = state_fd
        self.user = user

    def pack(self, uid: int, gid: int) -> bytes:
        """Return the packet; ``uid`` and ``gid`` are those of the sandbox's own user."""
        user, groups = self.user, b""
        if user is not None:
            uid, gid = user.uid, user.gid
            groups = struct.pack(f"={len(user.groups)}I", *user.groups)
        fd = _NONE if self.state_fd is None else self.state_fd
        return HEADER.pack(self._flags, fd, uid, gid, len(groups) // 4, *self._counts) + groups + self._strings
