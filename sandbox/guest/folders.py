"""Prepare the workspace, the home and /tmp, if the engine has not: the first two belong to the user, /tmp to everyone."""

from __future__ import annotations

import os

from . import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .loop.context import Place

LOST_AND_FOUND = b"lost+found"
TMP = b"/tmp"


def prepare_folders(disk: dict[str, Any], place: Place) -> None:
    """Give what root owns to the user, tidy up new file systems, make root's home. ``disk`` is the host's description of it."""
    if disk.get("kind") in ("volume", "memory"):
        for folder in {place.workspace, place.home}:
            if os.path.ismount(folder) and os.stat(folder).st_uid != place.uid:
                os.chown(folder, place.uid, place.gid)
    if disk.get("kind") == "ext4":
        with kernel.ActingOnFiles(place.uid, place.gid, True):  # who owns the parent folder
            for folder in (place.workspace, place.home):
                _remove_empty(os.path.join(folder, LOST_AND_FOUND))
    if disk.get("kind") in ("volume", "ext4") and os.path.ismount(TMP):  # made by root, as this process is
        _remove_empty(os.path.join(TMP, LOST_AND_FOUND))
        os.chmod(TMP, 0o1777)  # noqa: S103  (the usual mode of /tmp)
    if place.uid == 0:
        os.makedirs(place.home, 0o700, exist_ok=True)


def _remove_empty(folder: bytes) -> None:
    try:
        os.rmdir(folder)
    except OSError:  # missing, or not empty
        pass
