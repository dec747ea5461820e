"""How much of one result a model reads: one budget, which ``text_of`` applies where a result becomes text.

Memories keep as much of a result as any tool may ask to have shown, and make the budget smaller where a prompt has less room.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sandbox.envelope import Notice, jsonable
from sandbox.text.excerpt import SHOWN_CHARS, cut_middle

from .images import (
    IMAGE_TOKENS,
    MAX_IMAGES_PER_RESULT,
    described,
    has_images,
    image_part,
    images_in,
    is_image,
    with_few_images,
    without_images,
)

# English text and code have about 4 characters per token, and scripts with 3 bytes per character about one token per character:
# counted in bytes, both are accurate enough for a threshold, at no cost.
BYTES_PER_TOKEN = 4
# The budget of one result: about 2,500 tokens.
RESULT_TOKENS = SHOWN_CHARS // BYTES_PER_TOKEN
# The most that a tool may ask for, such as one whose answers are to be read whole: more would fill much of most models' context
# with one text.
MAX_RESULT_TOKENS = 10 * RESULT_TOKENS
MAX_SHOWN_CHARS = MAX_RESULT_TOKENS * BYTES_PER_TOKEN
# Of a result of several texts, or of very many small values, whose own words are shorter than its data.
MAX_KEPT_CHARS = 4 * MAX_SHOWN_CHARS


def shown_chars(envelope: Mapping[str, Any]) -> int:
    """Return the budget of a result in characters: what its field ``shown_chars`` asks for, if it has one, up to the maximum."""
    chars = envelope.get("shown_chars")
    if isinstance(chars, int) and not isinstance(chars, bool) and chars > 0:
        return min(chars, MAX_SHOWN_CHARS)
    return SHOWN_CHARS


def bounded(
    envelope: Mapping[str, Any], text_chars: int = MAX_SHOWN_CHARS, result_chars: int = MAX_KEPT_CHARS
) -> dict[str, Any]:
    """Return the envelope as JSON-ready data, for a memory to keep; a notice says if something was cut.

    Texts inside the result are cut to ``text_chars`` characters, head and tail; of a result that still has more than
    ``result_chars`` in all the lists are cut at their ends, and what is still too much becomes text and is cut as a whole.
    """
    data: dict[str, Any] = with_few_images(jsonable(envelope))
    cut: list[int] = []
    result = _cut_texts(data.get("result"), text_chars, cut)
    whole = json.dumps(without_images(result), ensure_ascii=False)
    if len(whole) > result_chars:
        result = without_images(result)
        result = _with_shorter_lists(result, result_chars / len(whole))
        shorter = json.dumps(result, ensure_ascii=False)
        cut.append(len(whole) - len(shorter))
        if len(shorter) > result_chars:
            result = _cut(shorter, result_chars, cut)
    if not cut:
        return data
    notice = Notice(
        "output_cut",
        f"The result was cut in the middle: {sum(cut)} characters of it are not shown.",
        "Ask for a smaller part of it.",
    )
    return {**data, "result": result, "notices": [*data.get("notices", []), notice.to_dict()]}


def _with_shorter_lists(result: Any, share: float) -> Any:
    """The result with about ``share`` of the items of its lists; its field ``truncated``, if it has one, says so."""
    if not isinstance(result, dict):
        return result
    lists = [name for name, value in result.items() if isinstance(value, list)]
    kept = {name: result[name][: int(len(result[name]) * share * 0.8)] for name in lists}
    return {**result, **kept, **({"truncated": True} if "truncated" in result else {})}


def cut_texts(value: Any, chars: int) -> Any:
    """Return JSON-ready data with its texts cut to ``chars`` characters: head, tail, and how many are missing."""
    return _cut_texts(value, chars, [])


def _cut_texts(value: Any, chars: int, cut: list[int]) -> Any:
    if is_image(value):  # half an image is useless
        return value if image_part(value) is not None else described(value)
    if isinstance(value, str):
        return _cut(value, chars, cut)
    if isinstance(value, dict):
        return {k: _cut_texts(v, chars, cut) for k, v in value.items()}
    return [_cut_texts(v, chars, cut) for v in value] if isinstance(value, list) else value


def _cut(text: str, limit: int, cut: list[int]) -> str:
    """Return head and tail of ``text``; how much is left out is added to ``cut``."""
    shown, left_out = cut_middle(text, limit)
    if left_out:
        cut.append(left_out)
    return shown


def shown_size(envelope: Mapping[str, Any]) -> int:
    """Return about how many bytes the envelope takes in a prompt, at most; cheap, without the action that it answers."""
    images = sum(1 for _ in images_in(envelope.get("result"))) if has_images(envelope.get("result")) else 0
    result = without_images(envelope.get("result"))
    if isinstance(result, Mapping) and "output" in result:  # both streams are in it
        result = {name: value for name, value in result.items() if name not in ("stdout", "stderr")}
    around = {name: envelope[name] for name in ("error", "hint", "notices") if envelope.get(name)}
    most = shown_chars(envelope) * 6 // 5  # a line feed counts twice here, as a token of its own nearly does
    shown = _bytes(json.dumps(result, ensure_ascii=False, default=repr)[:most])
    seen = min(images, MAX_IMAGES_PER_RESULT) * IMAGE_TOKENS * BYTES_PER_TOKEN
    return shown + seen + _bytes(json.dumps(around, ensure_ascii=False, default=repr))


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
