"""What each code of a problem means: ``GET /problems/{code}`` answers it, which is where the ``type`` of a problem leads."""

from __future__ import annotations

# Those of the HTTP layer, as in docs/http.md.
OF_HTTP = {
    "unauthorized": "no key, or an invalid one",
    "locked_out": "too many invalid keys from this address",
    "forbidden": "the key lacks the scope",
    "forbidden_by_operator": "the operator does not allow it",
    "route_not_found": "there is no such route",
    "method_not_allowed": "the route has other methods",
    "unknown_operation": "there is no such operation",
    "key_not_found": "the tenant has no such key",
    "template_not_found": "the tenant has no such template, or no build of it with that tag",
    "secret_not_found": "the tenant has no such secret (422 if a new sandbox is to use it)",
    "tenant_not_found": "there is no such tenant",
    "tenant_exists": "a tenant with that id exists",
    "quota_exceeded": "more than is left of the tenant's quota; 403 if it can never fit",
    "request_not_found": "no such request is under way",
    "request_id_reused": "the id was used for another request",
    "idempotency_key_reused": "the key was used for another creation",
    "creation_in_progress": "the first creation with that key is not finished",
    "invalid_request": "not valid HTTP/1.1, or ambiguous (431 if the head is too large)",
    "invalid_json": "the body is not a JSON object",
    "invalid_body": "the body has an invalid or unknown field",
    "invalid_query": "a parameter or header is invalid",
    "body_too_large": "the body is too large",
    "request_timeout": "the request was not received in time",
    "output_gone": "the output from that offset on is no longer kept",
    "events_gone": "some events after that id are no longer kept",
    "range_not_satisfiable": "the file has no such bytes",
    "wrong_state": "not possible in the present state",
    "wrong_host": "the Host is not a name of the service",
    "origin_refused": "a page of another origin may not do this",
    "too_many_connections": "the sandbox, the key or the address has as many connections as it may have (503: the service has)",
    "port_closed": "nothing listens on the port of the sandbox",
    "port_failed": "the server at the port was not reached, or does not speak HTTP",
    "draining": "the service is stopping",
    "store_unavailable": "the store cannot be written, for example because the disk is full; the request is not acknowledged",
    "internal_error": "a bug in the service",
}
# Those of sandboxes, as in docs/reference/codes.md. Values are without the marks of Markdown.
OF_SANDBOXES = {
    "invalid_arguments": "the arguments do not match the operation's schema, which the failure has as schema",
    "unknown_tool": "there is no tool or operation of that name",
    "unparsable_response": "no action could be read from the model's reply",
    "operation_not_supported": "this environment cannot carry out that operation",
    "approval_refused": "the action needs an approval and did not get one",
    "tool_error": "a tool's own function failed",
    "invalid_result": "a tool returned something that its return_schema does not allow",
    "too_many_actions": "this was a further call of a reply: only its first 8 are carried out, in a text language one",
    "path_not_found": "there is nothing at that path",
    "path_outside_roots": "the path leads out of the folders that file operations may touch",
    "path_exists": "the target is there already",
    "path_invalid": (
        "the path is invalid: it has a NUL or a name that is too long; or folders below it are too deep (500) to "
        "be moved to another file system"
    ),
    "path_changed": "something else changed the file while it was edited",
    "permission_denied": "the sandbox's user may not do that to the file",
    "is_a_directory": "the operation needs a file, and the path is a folder",
    "not_a_directory": "the operation needs a folder, and the path is not one",
    "not_a_regular_file": "a device, FIFO or socket, which is never opened",
    "directory_not_empty": "the folder is not empty, and recursive was not given",
    "file_too_large": "the file is larger than the limit of that operation",
    "not_text": "the operation needs a text, and the file is binary",
    "range_outside_file": "the lines or bytes asked for begin after the end of the file",
    "text_not_found": "old_text is not in the file; the failure shows the nearest lines",
    "text_not_unique": "old_text is there several times; the failure lists the places",
    "invalid_pattern": "the pattern is not a valid regular expression, or takes too long",
    "no_space": "the sandbox's disk is full, or too small for the workspace",
    "unsafe_archive": "an archive is damaged or too large, or has entries that could write outside its folder",
    "transfer_incomplete": "an upload or download was cut off, or the files of a checkpoint came too slowly",
    "io_error": "reading or writing failed for another reason, such as a lease that another process holds on the file",
    "too_many_files": "there are more files than are looked at (500,000)",
    "checkpoint_not_found": (
        "there is no checkpoint or mark with that id, a mark was passed where contents are needed, or it does not "
        "have the requested information"
    ),
    "restore_incomplete": "after a rollback something differs from the checkpoint; result.differs names it",
    "store_full": "checkpoints of this sandbox have reached checkpoint_bytes on the host",
    "timeout": (
        "the command ran out of time; says what it was waiting for or serving. The output so far is in result, and "
        "nothing of the command is left running"
    ),
    "cancelled": "it was cancelled or interrupted",
    "session_exists": "a session of that name is already open",
    "session_not_found": "the session was not opened, or it was ended",
    "user_not_allowed": "the sandbox's profile does not run commands as that user, or the command belongs to another user",
    "user_not_found": "the image has no user of that name",
    "program_not_found": "there is no such program",
    "program_not_executable": "the program is there and cannot be started",
    "shell_not_found": "the image has no shell for command; give argv",
    "working_directory_invalid": "the command could not start in that folder",
    "arguments_too_long": "the command line is longer than the kernel takes",
    "too_many_processes": "the process limit is reached, so that the command could not start; names the commands that run",
    "too_many_commands": "the limit of background commands, concurrent commands or sessions is reached",
    "unknown_command": "no command has that id",
    "command_ended": "the command has ended: nothing can be sent to it, or it ended before the condition was met",
    "stdin_closed": "the command's standard input is not open for send",
    "not_a_terminal": "the command was not started with pty",
    "kill_failed": "processes of the command are still alive; names one, and the process that traces it or its state",
    "cpu_limit": (
        "the command with all it started used up its processor time; as after a timeout, nothing it started is "
        "left running"
    ),
    "commands_running": "a rollback needs a sandbox in which no command runs",
    "not_ready": "the condition was not met in time",
    "invalid_url": "the address cannot be opened",
    "network_denied": "the rules of the network do not allow the host",
    "connection_failed": "nothing answered at the address",
    "too_many_redirects": "the address redirects without end",
    "browser_not_available": "the image has no Chromium, or the sandbox is no container",
    "browser_failed": "the browser ended or hung; the next call starts another one",
    "element_not_found": "the page has no element with this reference or selector, or it did not appear in time",
    "element_not_usable": "the element is hidden, covered, disabled, or of another kind than the step needs",
    "dialog_open": "the page shows a confirm or prompt, which has to be answered first",
    "script_failed": "the JavaScript of an evaluate step raised an exception",
    "response_too_large": "the answer is larger than the limit",
    "sandbox_unavailable": "the sandbox cannot answer any more; why",
    "sandbox_closed": "the environment is closed, or not started yet",
    "sandbox_paused": "the sandbox is paused; call resume()",
    "sandbox_owned": "another orchestrator uses the kept sandbox; says which",
    "sandbox_not_found": "the engine has no kept sandbox with that id or name",
    "engine_unavailable": "no Docker Engine answers",
    "engine_permission_denied": "this user may not use the engine's socket",
    "engine_timeout": "the engine did not answer in time; it may still carry out the request",
    "engine_error": "the engine answered with an error",
    "image_not_found": "the image is not on the engine, and either --pull (pull=True) was not given or pulling failed",
    "image_build_failed": "one of our own images could not be built",
    "start_failed": "the engine could not start the container",
    "host_disk_full": "the engine's disk, or this host's, is full",
    "host_descriptor_limit": (
        "the orchestrator, or its host, has no file descriptor left for a start or a forwarded port: raise ulimit "
        "-n"
    ),
    "capacity": (
        "the sandbox waited 30 s for its turn to start, and got none: this process starts more at once than the "
        "engine makes in that time. Nothing was started. Or no sandbox of a pool was ready within the "
        "timeout_seconds of acquire"
    ),
    "setup_failed": "a step of the set-up failed",
    "invalid_limits": "a limit is not allowed, or more than the engine's host has",
    "invalid_configuration": "an option or setting is invalid here",
    "limit_not_enforced": "the engine did not set a limit that was asked for, so there is no sandbox",
    "workspace_invalid": "the workspace is not a folder, or cannot be read",
}
MEANINGS = {**OF_SANDBOXES, **OF_HTTP}
