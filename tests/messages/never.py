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
    "host_descriptor_limit": _START, "setup_failed": _START, "invalid_limits": _START, "invalid_configuration": _START,
    "limit_not_enforced": _START, "workspace_invalid": _START,
    "model_unavailable": _MODEL, "model_credentials_missing": _MODEL, "model_rejected_request": _MODEL,
    "context_window_exceeded": _MODEL, "real_calls_forbidden": _MODEL, "apply_refused": _HOST,
    "log_unusable": _LOG, "run_not_found": _LOG, "run_in_use": _LOG, "run_not_resumable": _LOG,
    "approval_pending": _ENDS, "user_not_found": _HOST, "user_not_allowed": _HOST,
    "session_exists": _HOST, "session_not_found": _HOST,
}  # fmt: skip
# Met by a model, but not to be provoked on purpose within a test's time; their texts are read by hand (tests/unit/test_hints.py).
RARE: dict[str, str] = {
    "response_too_large": "an answer has to have more than the pipe carries, although every operation bounds its own",
    "path_changed": "another process has to write in the microseconds between the read and the rename of an edit",
    "io_error": "the kernel has to fail at a read or a write",
    "kill_failed": "a process has to survive SIGKILL, which takes a kernel that hangs",
    "shell_not_found": "needs an image without a shell (tests/integration has one)",
    "too_many_processes": "the guest itself has to be refused a process, after a fork bomb",
    "delegation_refused": "the budget of the run has to be used up exactly at a delegation",
    "effects_unknown": "the process has to die in the middle of an action, and the run to be resumed",
}
NOTICES: dict[str, str] = {
    "not_kept": _HOST, "changed_meanwhile": _HOST, "root_not_kept": _HOST, "files_skipped": _HOST,
    "finish_unchecked": _ENDS,
}  # fmt: skip
RARE_NOTICES: dict[str, str] = {
    "others_killed": "a command has to escape from its own tree, so that everything is killed",
    "cpu_limit": "what a command left running has to use up its processor time, which takes as long as the machine is busy",
    "network_cut": "needs a connection that is open for long", "service_ended": "needs a side service that ends",
    "idle_ending": "an agent that acts is not idle; only one whose model thinks for very long sees it",
    "reconnected": "the connection to the engine has to break", "no_space": "needs a soft disk limit that is passed",
}
