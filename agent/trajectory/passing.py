"""What is different each time though nothing is: fields that are gauges or made up anew, and the same within texts.

Everything else counts. A field stands here because of what it is, never because a test is quieter with it; a test demands that
each field of each result is decided.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from agent.placing import time_of

# By result: gauges (times, memory, how far a log had come), places and numbers that are made up anew.
PASSING: Mapping[str, frozenset[str]] = {
    "OomVictim": frozenset({"pid", "rss_bytes"}),
    # what a command printed is compared itself: how many bytes it was only says how long the times in it are written
    "RunResult": frozenset({"output_bytes", "spill_path", "duration_ms", "cpu_seconds", "max_rss_bytes", "waiting_for"}),
    "LogsResult": frozenset(
        {"offset", "next_offset", "total_bytes", "kept_bytes", "cpu_seconds", "max_rss_bytes", "waiting_for"}
    ),
    "KillResult": frozenset({"killed", "signalled"}),  # processes that happened to be there
    "DownloadResult": frozenset({"saved_to"}),
    "StatResult": frozenset({"mtime_seconds"}),
    "ScreenResult": frozenset({"waiting_for", "skipped_bytes"}),
    "SendResult": frozenset({"offset", "next_offset", "skipped_bytes", "pending_bytes", "waiting_for"}),
    "BrowseResult": frozenset({"total_chars", "size_bytes"}),
    "ListedCommand": frozenset({"seconds", "output_bytes", "waiting_for", "process_count", "processes"}),
    "ProcessesResult": frozenset({"sampled_seconds", "memory_bytes", "pids"}),
    "PlaceUsage": frozenset({"free_bytes"}),
    "UsageResult": frozenset(
        {
            "uptime_seconds", "cpu_seconds", "memory_used_bytes", "memory_peak_bytes", "processes", "lifetime_left_seconds",
            "idle_left_seconds", "network_sent_bytes", "network_received_bytes", "connections",
        }
    ),
    "WaitForResult": frozenset({"waited_seconds", "offset", "next_offset"}),
}  # fmt: skip
# Of results of other tools, which are no operations of the sandbox: those of delegate.
PASSING_ELSEWHERE = frozenset({"run_id", "usage"})
# Output of what still ran, or was stopped: one side may have come further than the other.
OUTPUTS = frozenset({"output", "stdout", "stderr", "content", "last_output", "text"})
UNFINISHED = frozenset({"timeout", "cpu_limit", "cancelled", "not_ready"})
# Notices of how much is left, or that are told with whatever is answered next.
PASSING_NOTICES = frozenset({
    "lifetime_ending", "idle_ending", "disk_nearly_full", "memory_nearly_full", "processes_nearly_full", "reconnected",
    "waited_for_session", "command_ended", "server_listening", "service_ended", "changed_meanwhile",
})  # fmt: skip
# Notices whose words are numbers of bytes and processes: that there is one counts.
COUNTED_NOTICES = frozenset({"output_cut", "still_running", "left_running", "others_killed", "out_of_memory"})

# The ports that a system gives out itself; one that was chosen counts.
_GIVEN_PORTS = range(32768, 61000)
_PORT = re.compile(r"(?<![\d.])(?:(?<=:)|(?<=\bport )|(?<=\bport=)|^)(\d{5})(?!\d|\.\d)", re.IGNORECASE)
_MASKS = (
    (re.compile(r"(?<![\d:.])\d\d:\d\d:\d\d(?:[.,]\d+)?(?![\d:])|\b0:\d\d:\d\d\.\d+\b"), "TIME"),
    (re.compile(r"\b\d+[.,]\d+ ?(?:ns|[µm]s|us|s|secs?|seconds?|min)\b|\b\d+ ?(?:ns|[µm]s|us)\b|\b\d+m\d+[.,]\d+s\b"), "DURATION"),
    (re.compile(r"\bat 0x[0-9a-f]{6,16}\b|\b0x[0-9a-f]{12}\b"), "ADDRESS"),
    (re.compile(r"\b(?i:pid|process)[ =:]+\d+\b|^\[\d+\] \d+$", re.MULTILINE), "PROCESS"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[14][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\b"), "UUID"),
    # commits hold the time; hashes of contents (sums, blobs) count
    (re.compile(r"\bcommit [0-9a-f]{40}\b|\[\S+ (?:\(root-commit\) )?[0-9a-f]{7,12}\]|HEAD is now at [0-9a-f]{7,12}\b"), "COMMIT"),
    # of mktemp and of the tempfile modules: with a capital or a digit, so that a name with a meaning counts
    (
        re.compile(
            r"(?<=/tmp/)(?:tmp\.?(?=[\w]*[A-Z0-9])\w{6,12}|tmp[a-z0-9_]{8}\b|[\w-]+\.(?=\w*[A-Z0-9])(?=\w*[a-z])\w{6,12}\b"
            r"|pytest-of-\w+/pytest-\d+)"
        ),
        "TEMPORARY",
    ),
)
_EPOCH = re.compile(r"(?<![\d.])(\d{10})(?:\d{3})?(?:\.\d+)?(?![\d.])")
_NEAR_SECONDS = 86_400


def masked(text: str, at: str = "") -> str:
    """``text`` without what is different each time. ``at`` is when it was told: dates of those days are times of the run, all
    others count.
    """
    for pattern, name in _MASKS:
        text = pattern.sub(name, text)
    told = time_of(at)
    if told is not None:
        text = _dates(int(told // _NEAR_SECONDS)).sub("DATE", text)
        text = _EPOCH.sub(lambda m: "TIME" if abs(int(m[1]) - told) < _NEAR_SECONDS else m[0], text)
    return _PORT.sub(lambda m: "PORT" if int(m[1]) in _GIVEN_PORTS else m[0], text)


def ports(text: str) -> list[str]:
    """The ports in a text that a system gave out, in their order."""
    return [m[1] for m in _PORT.finditer(text) if int(m[1]) in _GIVEN_PORTS]


@lru_cache(maxsize=64)
def _dates(day: int) -> re.Pattern[str]:
    """The day and its neighbours (other time zones), as programs write them, with the time behind it."""
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
