"""Why a program that is there cannot be started: its loader or its interpreter is missing, or it is for another machine.

The kernel reports a missing loader as it reports a missing program. The files read here may be hostile: they are read bounded, as
the user of the command.
"""

from __future__ import annotations

import os
import struct

from ...files.roots import Roots
from ...protocol.faults import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HEAD_BYTES = 4096
MOST_HEADERS = 64
LONGEST_NAME = 256
_PT_INTERP = 3
# By e_machine of elf(5).
MACHINES = {3: "i386", 21: "ppc64", 22: "s390x", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64", 258: "loongarch64"}


def explain_start(program: str, path: str, cwd: str) -> dict[str, Any]:
    """Return what keeps a program from being started, {} if that is not known. Acts as this thread's user.

    {"missing": the loader or interpreter that it names and that is not there}, {"machine": the one that it is for}, or {} for a
    program that is missing itself.
    """
    for folder in [""] if "/" in program else [each or "." for each in path.split(":")]:
        found = os.path.normpath(os.path.join(cwd, folder, program))
        try:
            fd, _ = Roots(b"/", (b"/",)).open_regular(found)
        except Fault:
            continue
        try:
            return _explain(os.read(fd, HEAD_BYTES))
        except OSError:
            return {}
        finally:
            os.close(fd)
    return {}


def _explain(head: bytes) -> dict[str, Any]:
    if head[:2] == b"#!":
        words = head[2:].split(b"\n", 1)[0].strip(b" \t").split(b" ")
        return _missing(words[0])
    if head[:4] != b"\x7fELF" or len(head) < 64:
        return {}
    order = ">" if head[5] == 2 else "<"
    (number,) = struct.unpack_from(f"{order}H", head, 18)
    machine = MACHINES.get(number, f"the machine {number} of ELF")
    return _missing(_loader(head, order)) or ({} if machine == os.uname().machine else {"machine": machine})


def _loader(head: bytes, order: str) -> bytes:
    """Return the path of the loader that an ELF file names, b"" if it names none."""
    wide = head[4] == 2
    (at,) = struct.unpack_from(f"{order}{'Q' if wide else 'I'}", head, 32 if wide else 28)
    size, count = struct.unpack_from(f"{order}HH", head, 54 if wide else 42)
    for index in range(min(count, MOST_HEADERS)):
        row = head[at + index * size :][:56]
        if len(row) < (40 if wide else 20) or struct.unpack_from(f"{order}I", row)[0] != _PT_INTERP:
            continue
        offset, length = struct.unpack_from(f"{order}Q16xQ", row, 8) if wide else struct.unpack_from(f"{order}I8xI", row, 4)
        return head[offset : offset + length].rstrip(b"\0")
    return b""


def _missing(path: bytes) -> dict[str, Any]:
    """Name a program that is not there."""
    if not path.startswith(b"/") or len(path) > LONGEST_NAME or os.path.exists(path):
        return {}
    return {"missing": path.decode("utf-8", "replace")}
