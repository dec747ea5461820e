"""Changing single files: write and edit."""

from __future__ import annotations

import os

from ..loop.context import Call
from ..protocol.faults import Fault
from . import edits
from .beneath import Roots, roots_of
from .edit_candidates import nearest, white_space_difference
from .reading import SNIFFED
from .replacing import Replacement, same

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def write(call: Call) -> dict[str, Any]:
    """The handler of ``write``: parents are made, the file is replaced in one step, its mode is kept."""
    path: str = call.args["path"]
    content = _utf8("content", call.args["content"])
    roots = roots_of(call.place)
    _bound(call, roots, path, len(content))
    with Replacement(roots, path) as new:
        new.write(content)
        new.commit()
        created = new.previous is None
    return {"path": roots.display(path), "size_bytes": len(content), "created": created}


def edit(call: Call) -> dict[str, Any]:
    """The handler of ``edit``; a failure carries the nearest places, or the several ones, as candidates."""
    path: str = call.args["path"]
    check_texts(call.args)
    roots = roots_of(call.place)
    data, status = _whole(call, roots, path)
    changed, result = edited(data, call.args, roots.display(path))
    _bound(call, roots, path, len(changed))
    with Replacement(roots, path) as replacement:
        replacement.write(changed)
        replacement.commit(unchanged_since=status)
    return result


def check_texts(args: dict[str, Any]) -> None:
    """Raises Fault ``invalid_arguments`` for texts that no edit can be made of."""
    old, new = _utf8("old_text", args["old_text"]), _utf8("new_text", args["new_text"])
    if not old:
        raise Fault("invalid_arguments", problem="old_text is empty")
    if old == new:
        raise Fault("invalid_arguments", problem="old_text and new_text are the same")


def edited(data: bytes, args: dict[str, Any], path: str) -> tuple[bytes, dict[str, Any]]:
    """The new content of a file shown as ``path``, and the result. Raises Fault, with candidates in its result."""
    old, new = _utf8("old_text", args["old_text"]), _utf8("new_text", args["new_text"])
    result: dict[str, Any] = {"path": path, "size_bytes": len(data)}
    places = edits.find(data, old)
    if not places:
        result["candidates"] = nearest(data, old)
        space = white_space_difference(old, result["candidates"])
        raise Fault("text_not_found", result=result, path=path, candidates=len(result["candidates"]), **space)
    if not args.get("replace_all") and len(several := edits.with_overlap(data, old, places)) > 1:
        result["candidates"] = edits.describe(data, several)
        raise Fault("text_not_unique", result=result, path=path, count=len(several))
    if len(places) > edits.MAX_PLACES:
        raise Fault(
            "invalid_arguments", problem=f"old_text occurs more than {edits.MAX_PLACES} times; use run with sed"
        )
    changed, replaced = edits.replace(data, places, new)
    return changed, {
        **result, "size_bytes": len(changed), "replacements": len(places),
        "first_line": data.count(b"\n", 0, places[0][0]) + 1, "diff": edits.diff(path, data, replaced),
    }  # fmt: skip


def _whole(call: Call, roots: Roots, path: str) -> tuple[bytes, os.stat_result]:
    fd, before = roots.regular(path)
    try:
        _bound(call, roots, path, before.st_size)
        with open(fd, "rb", closefd=False) as file:
            data = file.read(before.st_size)
        if not same(before, os.fstat(fd)) or len(data) != before.st_size:
            raise Fault("path_changed", path=roots.display(path))
    except OSError as error:
        raise roots.fault(error, path) from None
    finally:
        os.close(fd)
    if b"\0" in data[:SNIFFED]:
        raise Fault("not_text", path=roots.display(path), size_bytes=len(data))
    return data, before


def _bound(call: Call, roots: Roots, path: str, size: int) -> None:
    limit = int(call.place.limits["write_bytes"])
    if size > limit:
        raise Fault("file_too_large", path=roots.display(path), size_bytes=size, limit=limit)


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise Fault("invalid_arguments", problem=f"{name} is not valid Unicode: it contains a lone surrogate") from None
