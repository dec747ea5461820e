"""Expected failures inside the guest: a code and the values from which the host writes the message. Never text for a model."""

from __future__ import annotations

import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Fault(Exception):  # noqa: N818  (the word of the protocol)
    """An operation failed. ``code`` is one of the host's error codes, ``fields`` has the values for its message.

    ``effects`` is "none", "partial" or "unknown"; ``result`` has the fields of the operation's result that are known so far.
    """

    def __init__(
        self, code: str, *, effects: str = "none", result: dict[str, Any] | None = None, **fields: Any
    ) -> None:
        super().__init__(code, fields)
        self.code = code
        self.effects = effects
        self.result = result
        self.fields = fields


_CODES = {
    errno.ENOENT: "path_not_found",
    errno.EXDEV: "path_outside_roots",
    errno.ELOOP: "path_invalid",
    errno.ENAMETOOLONG: "path_invalid",
    errno.EINVAL: "path_invalid",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EROFS: "permission_denied",
    errno.EISDIR: "is_a_directory",
    errno.ENOTDIR: "not_a_directory",
    errno.ENOTEMPTY: "directory_not_empty",
    errno.EEXIST: "path_exists",
    errno.ENXIO: "not_a_regular_file",
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EFBIG: "file_too_large",
    errno.EMFILE: "too_many_processes",
    errno.EAGAIN: "too_many_processes",
}


def fault_of(error: OSError, path: str, **fields: Any) -> Fault:
    """Return the fault for an error of the kernel on ``path``."""
    number = error.errno or 0
    name = errno.errorcode.get(number, "unknown")
    return Fault(_CODES.get(number, "io_error"), path=path, errno=name, **fields)


def json_data(value: Any) -> Any:
    """Return the fields of a fault as data that JSON can hold."""
    if isinstance(value, dict):
        return {str(k): json_data(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [json_data(v) for v in value]
    if isinstance(value, bytes):
        return os.fsdecode(value).encode("utf-8", "replace").decode()
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def internal_fault(error: Exception, operation: str) -> Fault:
    """Return the fault for a bug of the guest, and write the traceback to its log."""
    sys.excepthook(type(error), error, error.__traceback__)
    return Fault("io_error", problem=f"{type(error).__name__} in {operation}", effects="unknown")
