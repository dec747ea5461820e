"""The limits of a sandbox that a tenant may set."""

from __future__ import annotations

# Limits that cost the sandbox alone. What it costs the host that a checkpoint is kept is bounded by the service.
LIMITS = (
    "memory_bytes",
    "cpus",
    "pids",
    "disk_bytes",
    "disk",
    "tmp_bytes",
    "shm_bytes",
    "open_files",
    "file_bytes",
    "spill_bytes",
    "read_bytes",
    "write_bytes",
    "transfer_bytes",
    "checkpoint_bytes",
    "timeout_seconds",
    "max_timeout_seconds",
    "keep_output_bytes",
    "cpu_seconds_per_command",
    "background_commands",
    "sessions",
    "concurrent_actions",
    "lifetime_seconds",
    "idle_seconds",
    "network_bytes",
    "network_connections",
    "network_silent_seconds",
)
# Those that the operator may bound: not a place, not folders in memory, which count as memory, and not the time to live.
BOUNDED = tuple(name for name in LIMITS if name not in ("disk", "tmp_bytes", "shm_bytes", "lifetime_seconds"))
# What no tenant has more of, unless the operator names a larger value: each action under way may take a thread of the service.
LARGEST = {"concurrent_actions": 64.0}
