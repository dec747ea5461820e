"""What varies between two runs of the same: fields such as times and ids, and the same within texts.

Everything else counts. A field is listed because of what it is, never because a test is quieter with it; a test demands that each
field of each result is decided.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from .subruns import time_of

# By result: measurements (times, memory, how long a log was), and places and numbers that the system chooses.
VOLATILE_FIELDS: Mapping[str, frozenset[str]] = {
    "OomVictim": frozenset({"pid", "rss_bytes"}),
    # the output itself is compared: its size only says how many digits the times in it have
    "RunResult": frozenset(
        {"output_bytes", "spill_path", "duration_ms", "cpu_seconds", "max_rss_bytes", "waiting_for"}
    ),
    "LogsResult": frozenset(
        # how output of the two streams alternates is a matter of time
        {"offset", "next_offset", "total_bytes", "kept_bytes", "streams", "cpu_seconds", "max_rss_bytes", "waiting_for"}
    ),
    "KillResult": frozenset({"killed", "signalled"}),  # the processes that there happened to be
    "DownloadResult": frozenset({"saved_to"}),
    "StatResult": frozenset({"mtime_seconds"}),
    "ScreenResult": frozenset({"waiting_for", "skipped_bytes"}),
    "SendResult": frozenset({"offset", "next_offset", "skipped_bytes", "pending_bytes", "waiting_for"}),
    # whether a page had loaded by then is a matter of time
    "BrowseResult": frozenset({"total_chars", "size_bytes", "complete"}),
    "InteractResult": frozenset({"complete"}),
    "ScreenshotResult": frozenset({"path", "size_bytes", "image"}),  # pictures differ in single pixels
    "ListedCommand": frozenset({"seconds", "output_bytes", "waiting_for", "process_count", "processes"}),
    "ProcessesResult": frozenset({"sampled_seconds", "memory_bytes", "pids"}),
    "PlaceUsage": frozenset({"free_bytes"}),
    "UsageResult": frozenset(
        {
            "uptime_seconds",
            "cpu_seconds",
            "memory_used_bytes",
            "memory_peak_bytes",
            "processes",
            "lifetime_left_seconds",
            "idle_left_seconds",
            "network_sent_bytes",
            "network_received_bytes",
            "connections",
        }
    ),
    "WaitForResult": frozenset({"waited_seconds", "offset", "next_offset"}),
}
# Of the envelope itself.
VOLATILE_IN_ENVELOPE = frozenset({"timestamp", "duration_ms"})
# Of results of other tools than the operations of the sandbox: those of delegate.
VOLATILE_ELSEWHERE = frozenset({"run_id", "usage"})
# Of any value of which the model is not known.
VOLATILE_ANYWHERE = frozenset(
    {
        *VOLATILE_IN_ENVELOPE,
        "age_seconds",
        "cpu_seconds",
        "id",
        "max_rss_bytes",
        "pid",
        "request_id",
        "run_id",
        "seconds",
        "spill_path",
        "waited_seconds",
    }
)
# Output of a command that still ran, or was stopped: one run may have come further than the other.
OUTPUTS = frozenset({"output", "stdout", "stderr", "content", "last_output", "text"})
UNFINISHED = frozenset({"timeout", "cpu_limit", "cancelled", "not_ready"})
# In the error about a command whose time was up: what it was doing, which is known only if the look at it came in time.
DOING = re.compile(
    r"(?<=and was killed): .+(?=\. (?:Nothing it started is|\d+ of its processes could))"
    r"|(?<= seconds); .+(?=: nothing can be sent to it|, and )",
    re.DOTALL,
)
# Notices of how much is left, and those that come with whatever is answered next.
VOLATILE_NOTICES = frozenset(
    {
        "lifetime_ending",
        "idle_ending",
        "disk_nearly_full",
        "memory_nearly_full",
        "processes_nearly_full",
        "reconnected",
        "waited_for_session",
        "command_ended",
        "server_listening",
        "service_ended",
        "changed_meanwhile",
    }
)
# Notices about numbers of bytes and processes: it counts only that there is one.
COUNTED_NOTICES = frozenset({"output_cut", "still_running", "left_running", "others_killed", "out_of_memory"})

# The ports that a system chooses itself; one that somebody chose counts.
_EPHEMERAL_PORTS = range(32768, 61000)
_PORT = re.compile(r"(?<![\d.])(?:(?<=:)|(?<=\bport )|(?<=\bport=)|^)(\d{5})(?!\d|\.\d)", re.IGNORECASE)
_MASKS = (
    (re.compile(r"(?<![\d:.])\d\d:\d\d:\d\d(?:[.,]\d+)?(?![\d:])|\b0:\d\d:\d\d\.\d+\b"), "TIME"),
    (
        re.compile(
            r"\b\d+[.,]\d+ ?(?:ns|[µm]s|us|s|secs?|seconds?|min)\b|\b\d+ ?(?:ns|[µm]s|us)\b|\b\d+m\d+[.,]\d+s\b"
        ),
        "DURATION",
    ),
    (re.compile(r"\bat 0x[0-9a-f]{6,16}\b|\b0x[0-9a-f]{12}\b"), "ADDRESS"),
    (re.compile(r"\b(?i:pid|process)[ =:]+\d+\b|^\[\d+\] \d+$", re.MULTILINE), "PROCESS"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[14][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\b"), "UUID"),
    # commits hold the time; hashes of contents (sums, blobs) count
    (
        re.compile(
            r"\bcommit [0-9a-f]{40}\b|\[\S+ (?:\(root-commit\) )?[0-9a-f]{7,12}\]|HEAD is now at [0-9a-f]{7,12}\b"
        ),
        "COMMIT",
    ),
    # of mktemp and of the tempfile modules: with a capital or a digit, so that a name with a meaning counts
    (
        re.compile(
            r"(?<=/tmp/)(?:tmp\.?(?=[\w]*[A-Z0-9])\w{6,12}|tmp[a-z0-9_]{8}\b|[\w-]+\.(?=\w*[A-Z0-9])(?=\w*[a-z])\w{6,12}\b"
            r"|pytest-of-\w+/pytest-\d+)"
        ),
        "TEMPORARY",
    ),
)
# What is masked as well if nothing is known of the time: every date, and what looks like an id.
_LOOSE_MASKS = (
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"), "DATE"),
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "UUID"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "ADDRESS"),
    (re.compile(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{12,64}\b"), "ID"),
)
_EPOCH = re.compile(r"(?<![\d.])(\d{10})(?:\d{3})?(?:\.\d+)?(?![\d.])")
_NEAR_SECONDS = 86_400


def mask_text(text: str, at: str = "") -> str:
    """Return ``text`` without what varies between runs. ``at`` is its time in ISO 8601: dates near it are masked, others count."""
    for pattern, name in _MASKS:
        text = pattern.sub(name, text)
    seconds = time_of(at)
    if seconds is not None:
        text = _dates(int(seconds // _NEAR_SECONDS)).sub("DATE", text)
        text = _EPOCH.sub(lambda m: "TIME" if abs(int(m[1]) - seconds) < _NEAR_SECONDS else m[0], text)
    return _PORT.sub(lambda m: "PORT" if int(m[1]) in _EPHEMERAL_PORTS else m[0], text)


def mask_loosely(text: str) -> str:
    """Return ``text`` also without any date, hash and id: to ask whether a run repeats itself, not whether two runs agree."""
    for pattern, name in _LOOSE_MASKS:
        text = pattern.sub(name, text)
    return mask_text(text)


def mask_value(value: Any) -> Any:
    """Return JSON-ready data without what varies: the fields of VOLATILE_ANYWHERE are left out, texts are masked loosely."""
    if isinstance(value, str):
        return mask_loosely(value)
    if isinstance(value, Mapping):
        return {str(key): mask_value(inner) for key, inner in value.items() if key not in VOLATILE_ANYWHERE}
    return [mask_value(inner) for inner in value] if isinstance(value, list | tuple) else value


def ports(text: str) -> list[str]:
    """Return the ports in a text that a system chose, in their order."""
    return [m[1] for m in _PORT.finditer(text) if int(m[1]) in _EPHEMERAL_PORTS]


@lru_cache(maxsize=64)
def _dates(day: int) -> re.Pattern[str]:
    """Return a pattern of the day and its neighbours (other time zones) as programs write them, with the time after it."""
    forms = []
    for near in (day - 1, day, day + 1):
        date = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=near)
        month = date.strftime("%b")
        forms += [f"{date:%Y-%m-%d}", f"{date:%Y/%m/%d}", f"{date:%Y%m%d}", f"{date:%d}/{month}/{date:%Y}"]
        forms += [rf"0?{date.day} {month} {date:%Y}", rf"{month} +{date.day} {date:%Y}"]
        forms += [rf"{month} +{date.day}(?= \d\d:| TIME)"]
    zone = r"(?: ?(?:Z\b|UTC\b|GMT\b|[+-]\d\d:?\d\d\b))?"
    weekday = r"(?:\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? )?"
    clock = rf"(?:[T ,]+(?:TIME|\d\d:\d\d)\b{zone}(?: \d{{4}}\b)?)?"
    return re.compile(rf"{weekday}(?<![\w-])(?:{'|'.join(forms)})(?!\d){clock}")
