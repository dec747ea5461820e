"""What was written to a container's root file system since its image, as the engine tells it: no program in it is asked."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from urllib.parse import quote

import docker.errors
import requests

from sandbox.docker.engine.client import connect, translated
from sandbox.errors import ErrorCode, SandboxError

# A sandbox can make as many files as it likes; what the engine tells of more than that is not read.
MOST_BYTES = 32 << 20
_CHUNK = 1 << 16
_KINDS = ("modified", "added", "deleted")


class Written(NamedTuple):
    """A path that differs from the image; ``kind`` is modified (folders in which something is, too), added or deleted."""

    path: str
    kind: str


def written_on_root(container_id: str) -> tuple[Written, ...]:
    """Every path of the root file system that differs from the image; what is mounted over it is not looked at.

    Raises SandboxError as the engine does, and ``io_error`` where there are too many.
    """
    api = connect().api
    with translated():
        # diff() of docker-py has no bound.
        answer = api.get(f"{api.base_url}/v{api.api_version}/containers/{quote(container_id)}/changes", stream=True)
        try:
            _raise_for_status(answer)
            told = bytearray()
            for chunk in answer.iter_content(_CHUNK):
                told += chunk
                if len(told) > MOST_BYTES:
                    raise SandboxError(
                        ErrorCode.io_error,
                        f"More files differ from the image than can be looked at ({MOST_BYTES >> 20} MiB of names).",
                        "Look at what the commands wrote outside of the workspace.",
                    )
        finally:
            answer.close()
    return tuple(_written(each) for each in json.loads(bytes(told) or b"null") or ())


def _raise_for_status(answer: requests.Response) -> None:
    try:
        answer.raise_for_status()
    except requests.HTTPError as error:
        docker.errors.create_api_error_from_http_exception(error)  # raises it


def _written(told: Any) -> Written:
    kind = told["Kind"]
    return Written(str(told["Path"]), _KINDS[kind] if kind in range(len(_KINDS)) else "modified")
