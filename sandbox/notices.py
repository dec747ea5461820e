"""The words of notices: what a model should know though the action worked. Each maker answers (message, hint)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from . import waits
from .wording import size

Fields = Mapping[str, Any]


def _oom(f: Fields) -> tuple[str, str]:
    count, limit = f.get("kills"), size(f.get("limit"))
    whose = "of this command" if f.get("certain") else "in this sandbox, while this command ran,"
    return (
        f"The memory limit of {limit} was hit: {count} process(es) {whose} were killed.",
        "Work on less data at once; files in the workspace and /tmp count as memory too.",
    )


NOTICES: dict[str, Callable[[Fields], tuple[str, str]]] = {
    "still_running": waits.still_running,
    "left_running": lambda f: (
        f"{f.get('count')} process(es) that the command started are still running under the id {f.get('id')}.",
        f"See their output with logs(id={f.get('id')!r}); end them with kill.",
    ),
    "output_cut": lambda f: (
        f"The output of {f.get('bytes')} bytes was cut in the middle.",
        f"All of it is in {f.get('path')}: read or search that." if f.get("path") else "Run it again with less output.",
    ),
    "output_not_text": lambda _: (
        "The output is not valid UTF-8: bytes in it were replaced.",
        "For the exact bytes, redirect it to a file and download that.",
    ),
    "out_of_memory": _oom,
    "others_killed": lambda f: (
        f"It took a kill of everything: {', '.join(map(str, f.get('ids', []))) or 'no other command'} ended too.",
        "Start those again if they are needed.",
    ),
    "session_not_kept": lambda f: (
        f"Exported variables are too large to carry over: {', '.join(map(str, f.get('names', []))) or 'all of this command'}.",
        "Keep large values in files; a variable may have 128 KiB, all together 1 MiB.",
    ),
    "command_ended": waits.told_end,
    "disk_nearly_full": lambda f: (
        f"{f.get('path')} is nearly full: {size(f.get('free'))} of {size(f.get('size'))} are left.",
        "Delete what is not needed before writing more.",
    ),
    "no_space": lambda f: (
        f"The disk limit of {size(f.get('limit'))} was passed ({size(f.get('used'))} are used), so the command was ended.",
        "Delete what is not needed; a command that writes more is ended again.",
    ),
    "files_skipped": lambda f: (
        f"{f.get('count')} entries were skipped: {', '.join(map(str, f.get('names', [])))}.",
        "Links that lead out, devices, sockets and pipes are not copied.",
    ),
}
