"""Writing and editing files."""

from __future__ import annotations

import os

from ..loop.context import Call
from ..protocol.faults import Fault
from . import edits
from .edit_candidates import find_candidates, white_space_difference
from .reading import SNIFFED
from .replacement import Replacement, same_file
from .roots import Roots, roots_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def write(call: Call) -> dict[str, Any]:
    """Handle ``write``: make parents, replace the file in one step, and keep its mode. Raises Fault."""
    path: str = call.args["path"]
    content = call.args["content"]
    if isinstance(content, str):  # else it came beside the arguments
        content = _encode("content", content)
    roots = roots_of(call.place)
    _check_size(call, roots, path, len(content))
    with Replacement(call.place, path) as new:
        new.write(content)
        new.commit()
        created = new.previous is None
    return {"path": new.displayed, "size_bytes": len(content), "created": created}


def edit(call: Call) -> dict[str, Any]:
    """Handle ``edit``. Raises Fault; if the text is not found or not unique, its result has candidates."""
    path: str = call.args["path"]
    check_texts(call.args)
    roots = roots_of(call.place)
    data, status = _read_text(call, roots, path)
    changed, result = apply_edit(data, call.args, roots.display(path))
    _check_size(call, roots, path, len(changed))
    with Replacement(call.place, path) as replacement:
        replacement.write(changed)
        replacement.commit(unchanged_since=status)
    return result


def check_texts(args: dict[str, Any]) -> None:
    """Raise Fault ``invalid_arguments`` if the texts of an edit are invalid."""
    old, new = _encode("old_text", args["old_text"]), _encode("new_text", args["new_text"])
    if not old:
        raise Fault("invalid_arguments", problem="old_text is empty")
    if old == new:
        raise Fault("invalid_arguments", problem="old_text and new_text are the same")


def apply_edit(data: bytes, args: dict[str, Any], path: str) -> tuple[bytes, dict[str, Any]]:
    """Return the new content of a file, and the result of the edit. Raises Fault, with candidates in its result.

    ``path`` is the file's path for the result.
    """
    old, new = _encode("old_text", args["old_text"]), _encode("new_text", args["new_text"])
    result: dict[str, Any] = {"path": path, "size_bytes": len(data)}
    places = edits.find(data, old)
    if not places:
        result["candidates"] = find_candidates(data, old)
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
        **result,
        "size_bytes": len(changed),
        "replacements": len(places),
        "first_line": data.count(b"\n", 0, places[0][0]) + 1,
        "diff": edits.diff(path, data, replaced),
    }


def _read_text(call: Call, roots: Roots, path: str) -> tuple[bytes, os.stat_result]:
    """Return the content of a text file and its status. Raises Fault."""
    fd, before = roots.open_regular(path)
    try:
        _check_size(call, roots, path, before.st_size)
        with open(fd, "rb", closefd=False) as file:
            data = file.read(before.st_size)
        if not same_file(before, os.fstat(fd)) or len(data) != before.st_size:
            raise Fault("path_changed", path=roots.display(path))
    except OSError as error:
        raise roots.fault_for(error, path) from None
    finally:
        os.close(fd)
    if b"\0" in data[:SNIFFED]:
        raise Fault("not_text", path=roots.display(path), size_bytes=len(data))
    return data, before


def _check_size(call: Call, roots: Roots, path: str, size: int) -> None:
    limit = int(call.place.limits["write_bytes"])
    if size > limit:
        raise Fault("file_too_large", path=roots.display(path), size_bytes=size, limit=limit)


def _encode(name: str, text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise Fault("invalid_arguments", problem=f"{name} is not valid Unicode: it contains a lone surrogate") from None
