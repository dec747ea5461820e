"""Codes that no model meets through its tools, each with the reason; ``test_messages`` checks that all others have a situation."""

from __future__ import annotations

_HOST = "answers a call that only the host's own code can make"
_START = "ends the start of a sandbox, before there is a model"
_ENDS = "ends the run: there is no further prompt"
_MODEL = "is about the model itself: it is never asked"
_LOG = "is about the log of a run, for the person who reads or resumes it"

ERRORS: dict[str, str] = {
    "unsafe_archive": _HOST, "transfer_incomplete": _HOST, "too_many_files": _HOST, "checkpoint_not_found": _HOST,
    "restore_incomplete": _HOST, "store_full": _HOST, "commands_running": _HOST, "cancelled": _HOST,
    "program_not_found": "comes of argv alone, which run does not offer to models; a shell says 'not found' itself",
    "program_not_executable": "comes of argv alone, which run does not offer to models",
    "sandbox_unavailable": _ENDS, "sandbox_closed": _ENDS, "sandbox_owned": _HOST, "sandbox_not_found": _HOST,
    "sandbox_paused": _HOST,
    "engine_unavailable": _START, "engine_permission_denied": _START, "engine_timeout": _START, "engine_error": _START,
    "image_not_found": _START, "image_build_failed": _START, "start_failed": _START, "host_disk_full": _HOST,
    "host_descriptor_limit": _START, "capacity": _START, "setup_failed": _START, "invalid_limits": _START,
    "invalid_configuration": _START, "limit_not_enforced": _START, "workspace_invalid": _START,
    "model_unavailable": _MODEL, "model_credentials_missing": _MODEL, "model_rejected_request": _MODEL,
    "context_window_exceeded": _MODEL, "real_calls_forbidden": _MODEL, "apply_refused": _HOST,
    "log_unusable": _LOG, "run_not_found": _LOG, "run_in_use": _LOG, "run_not_resumable": _LOG,
    "approval_pending": _ENDS, "user_not_found": _HOST, "user_not_allowed": _HOST,
    "delegation_refused": _ENDS, "session_exists": _HOST, "session_not_found": _HOST,
}  # fmt: skip
_BROWSER = "takes a sandbox of the image with a browser: tests/browser provokes it there"
# Met by a model, but not in the sandbox of the situations.
RARE: dict[str, str] = dict.fromkeys(
    ("browser_failed", "element_not_found", "element_not_usable", "dialog_open", "script_failed"), _BROWSER
)
NOTICES: dict[str, str] = {
    "not_kept": _HOST, "changed_meanwhile": _HOST, "root_not_kept": _HOST, "files_skipped": _HOST,
    "finish_unchecked": _ENDS,
}  # fmt: skip
RARE_NOTICES: dict[str, str] = {
    "write_lost": "it takes a host whose disk loses its last 4 GiB in the third of a second after a long write",
    "others_killed": "it takes a fork storm that outruns killing one by one for 0.2 s; of 38 tries (in shell, Python and C, with "
    "256 and 512 processes) 1 came to it, and 4 ended the sandbox",
}
