"""List what differs between a container's root file system and its image. The engine tells; no program in the sandbox is asked."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from urllib.parse import quote

import docker.errors
import requests

from sandbox.docker.engine.client import connect, translated
from sandbox.errors import ErrorCode, SandboxError

# A sandbox can make any number of files, so the engine's answer is bounded.
MOST_BYTES = 32 << 20
_CHUNK = 1 << 16
_KINDS = ("modified", "added", "deleted")


class RootChange(NamedTuple):
    """A path that differs from the image. ``kind`` is modified (also for a folder with a change in it), added or deleted."""

    path: str
    kind: str


def list_root_changes(container_id: str) -> tuple[RootChange, ...]:
    """Return every path of the root file system that differs from the image. Mounts are left out.

    Raises SandboxError: the engine's errors, and ``io_error`` for too many changes.
    """
    api = connect().api
    with translated():
        # docker-py's diff() reads an answer of any size. Its client is a requests session, whose public get() reads in pieces.
        answer = api.get(f"{api.base_url}/v{api.api_version}/containers/{quote(container_id)}/changes", stream=True)
        try:
            _raise_for_status(answer)
            listed = bytearray()
            for chunk in answer.iter_content(_CHUNK):
                listed += chunk
                if len(listed) > MOST_BYTES:
                    raise SandboxError(
                        ErrorCode.io_error,
                        f"More files differ from the image than can be looked at ({MOST_BYTES >> 20} MiB of names).",
                        "Look at what the commands wrote outside of the workspace.",
                    )
        finally:
            answer.close()
    return tuple(_parse_change(each) for each in json.loads(bytes(listed) or b"null") or ())


def _raise_for_status(answer: requests.Response) -> None:
    try:
        answer.raise_for_status()
    except requests.HTTPError as error:
        docker.errors.create_api_error_from_http_exception(error)  # raises it


def _parse_change(fields: Any) -> RootChange:
    kind = fields["Kind"]
    return RootChange(str(fields["Path"]), _KINDS[kind] if kind in range(len(_KINDS)) else "modified")
