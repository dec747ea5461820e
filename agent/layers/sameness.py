"""Fingerprints of calls and answers: equal for two that say the same, without what varies, as times, ids and addresses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from agent.record.volatile import mask_loosely, mask_value

# A longer text is compared by its head and tail.
MAX_CHARS = 200_000


def lasting(value: Any) -> Any:
    """Return JSON-ready data without what varies; of a long text its head and tail."""
    return mask_value(_shorter(value))


def print_of_action(tool: str | None, args: Any) -> str:
    """Return the fingerprint of a call. Ids in its arguments count: they say what is asked about."""
    args = {key: _masked(value) for key, value in args.items()} if isinstance(args, Mapping) else args
    return _digest([tool, args])


def print_of_answer(envelope: Mapping[str, Any] | None) -> str:
    """Return the fingerprint of an envelope. Of notices only the code counts: most say how much is left."""
    answer = dict(envelope or {})
    notices = answer.pop("notices", None) or ()
    codes = sorted(str(n.get("code")) for n in notices if isinstance(n, Mapping))
    return _digest([lasting(answer), codes])


def _masked(value: Any) -> Any:
    return mask_loosely(value) if isinstance(value, str) and len(value) <= MAX_CHARS else value


def _shorter(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= MAX_CHARS else value[: MAX_CHARS // 2] + value[-MAX_CHARS // 2 :]
    if isinstance(value, Mapping):
        return {key: _shorter(inner) for key, inner in value.items()}
    return [_shorter(inner) for inner in value] if isinstance(value, list | tuple) else value


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
