"""When two answers say the same: compared without what differs each time, as times, ids and addresses."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

# Facts about one time an action was carried out, not about what it did.
PASSING_KEYS = frozenset(
    {"timestamp", "duration_ms", "cpu_seconds", "max_rss_bytes", "id", "pid", "request_id", "spill_path", "age_seconds"}
)
# Times only with a fraction: "0.12 s" is how long something took, "12 s elapsed" is news.
PASSING_TEXT = re.compile(
    r"""(?x)
      \b \d{4}-\d\d-\d\d (?: [T ]\d\d:\d\d (?: :\d\d (?: [.,]\d+ )? )? (?: Z | [+-]\d\d:?\d\d )? )?   # a date, with time
    | \b \d\d:\d\d:\d\d (?: [.,]\d+ )? \b
    | \b \d+ \.\d+ \s? (?: ns | [µm]?s | secs? | seconds? | min ) \b
    | \b [0-9a-fA-F]{8} (?: -[0-9a-fA-F]{4} ){3} -[0-9a-fA-F]{12} \b
    | \b 0x[0-9a-fA-F]+ \b
    | \b (?= [0-9a-f]*[a-f] ) (?= [0-9a-f]*\d ) [0-9a-f]{12,64} \b
    | (?<= pid[ =:] ) \s? \d+ | (?<= PID[ =:] ) \s? \d+
    """
)
# What is longer is compared by its head and tail.
MAX_CHARS = 200_000


def lasting(value: Any) -> Any:
    """``value``, JSON-ready data, without what differs each time."""
    if isinstance(value, str):
        text = value if len(value) <= MAX_CHARS else value[: MAX_CHARS // 2] + value[-MAX_CHARS // 2 :]
        return PASSING_TEXT.sub("•", text)
    if isinstance(value, Mapping):
        return {str(key): lasting(inner) for key, inner in value.items() if key not in PASSING_KEYS}
    return [lasting(inner) for inner in value] if isinstance(value, list | tuple) else value


def print_of_action(tool: str | None, args: Any) -> str:
    """The same for two calls that ask for the same; here ids count, for they say of what is asked."""
    args = {key: _words(value) for key, value in args.items()} if isinstance(args, Mapping) else args
    return _digest([tool, args])


def print_of_answer(envelope: Mapping[str, Any] | None) -> str:
    """The same for two envelopes that say the same. Of notices only the code counts: most tell what is left."""
    answer = dict(envelope or {})
    notices = answer.pop("notices", None) or ()
    codes = sorted(str(n.get("code")) for n in notices if isinstance(n, Mapping))
    return _digest([lasting(answer), codes])


def _words(value: Any) -> Any:
    return PASSING_TEXT.sub("•", value) if isinstance(value, str) and len(value) <= MAX_CHARS else value


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
