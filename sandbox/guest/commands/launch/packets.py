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
# What was packed last: most commands have the variables of the one before.
_last_variables: list[tuple[Mapping[str, str], bytes]] = [({}, b"")]
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

    ``env`` must not change afterwards; ``added`` are variables that are not in it. ``user`` is None for the sandbox's own user.
    ``state_fd`` is the number by which the command knows the file for its shell's state. Raises Fault ``invalid_arguments`` for
    text that no program can be given.
    """

    __slots__ = ("_counts", "_flags", "_strings", "state_fd", "user")

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        *,
        added: Mapping[str, str] | None = None,
        state_fd: int | None = None,
        user: User | None = None,
        announce: bool = False,
        terminal: bool = False,
    ) -> None:
        known, variables = _last_variables[0]
        if env is not known:
            variables = _pack_texts([f"{name}={value}" for name, value in env.items()])
            _last_variables[0] = env, variables
        added = added or {}
        more = [f"{name}={value}" for name, value in added.items()]
        self._strings = _pack_texts([cwd or "", *argv]) + variables + _pack_texts(more)
        self._counts = (len(argv), len(env) + len(added), len(self._strings))
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


def _pack_texts(texts: list[str]) -> bytes:
    """Return texts, each with a NUL behind it. Raises Fault ``invalid_arguments``."""
    try:
        packed = os.fsencode("".join([f"{text}\0" for text in texts]))
    except UnicodeEncodeError as error:
        problem = "a character that no program can be given in the command, its folder or its environment"
        raise Fault("invalid_arguments", problem=problem) from error
    if packed.count(0) != len(texts):
        raise Fault("invalid_arguments", problem="a NUL character in the command, its folder or its environment")
    return packed
