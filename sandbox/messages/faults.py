"""Word the faults that a guest reports.

The guest sends codes and values. Here, and in the modules that this one collects, they become a sentence with the offending
value and a hint with the next legal step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sandbox.envelope import Notice
from sandbox.errors import ErrorCode, OperationError, SandboxUnavailableError
from sandbox.readers import Hint
from sandbox.text.wording import Wording, count_of, duration, one_line, size

from . import network as network_words
from . import pages as page_words
from . import paths as path_words
from . import waiting as waits
from .notices import NOTICES

Fields = Mapping[str, Any]


def word_fault(code: ErrorCode, fields: Fields, operation: str) -> Wording:
    """Word a fault that the guest reported in ``operation``."""
    known = _worded_fields(fields)
    maker = _FAULTS.get(code)
    if maker is not None:
        return maker({**known, "operation": operation})
    problem = known.get("problem") or known.get("errno") or code.value.replace("_", " ")
    where = f" on {known['path']!r}" if "path" in known else ""
    return Wording(
        f"{operation}{where} failed: {problem}.", "Look at the state of the files with list, then choose another way."
    )


def fault_error(code: ErrorCode, fields: Fields, operation: str) -> OperationError:
    """Return the error for a fault with these values."""
    wording = word_fault(code, fields, operation)
    return OperationError(code, wording.message, wording.hint, next_tool=wording.next_tool, retryable=wording.retryable)


def violation(operation: str) -> SandboxUnavailableError:
    """Return the error for an answer that no guest of ours would send."""
    return SandboxUnavailableError(
        "protocol_violation",
        f"The sandbox answered {operation} with something that is not an answer.",
        "Start another sandbox.",
    )


def word_notice(code: str, fields: Fields) -> Notice | None:
    """Return the notice that the guest reported, or None for an unknown code."""
    maker = NOTICES.get(code)
    return None if maker is None else Notice(code, *maker(_worded_fields(fields)))


# Fields that are lists; all others are single values.
_LISTS = frozenset({"roots", "known", "ids", "names", "near", "ports", "live"})
_MOST = (1 << 63) - 1


def _worded_fields(fields: Fields) -> dict[str, Any]:
    """Return the values in a form that can be worded, whatever the guest sent: short, and lists where lists belong."""
    known: dict[str, Any] = {}
    for name, value in fields.items():
        if name in _LISTS:
            known[name] = [_short(v) for v in value[:10]] if isinstance(value, list) else []
        elif name == "wait":
            known[name] = waits.parse_waiting_for(value)
        else:
            known[name] = _short(value)
    return known


def _short(value: Any) -> Any:
    if type(value) is int:
        return max(-_MOST, min(value, _MOST))
    if value is None or isinstance(value, bool | float):
        return value
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= 500 else text[:497] + "..."


def _invalid_path(f: Fields) -> Wording:
    if f.get("too_deep"):
        return Wording(
            f"{f.get('path')!r} has folders more than {f.get('limit')} deep, and is not moved to another file system.",
            "Nothing was moved. Move it within its file system, or use run with mv or tar.",
            "run",
        )
    if f.get("errno") == "ELOOP":
        return path_words.circle(f)
    problem = str(f.get("problem") or f.get("errno") or "invalid")
    if "is a root" in problem or "does not end in" in problem:
        hint = "Name a file or folder in it."
    elif "the limit is" in problem:
        hint = "Choose a shorter name." if "a name" in problem else "Choose a shorter path."
    else:
        hint = "Give a relative path without NUL characters, with names of at most 255 bytes."
    return Wording(f"{f.get('path')!r} is not a usable path: {problem}.", hint)


def _too_large(f: Fields) -> Wording:
    measured = f" is {size(f['size_bytes'])}" if "size_bytes" in f else " is too large"
    most = f.get("limit")
    limit = f", the limit for {f['operation']} is {size(most)}" if most is not None else ""
    hints = {
        "read": "Read a part of it with start_line and end_line, or search it.",
        "edit": "Change it with a command, such as sed or a short script, with run.",
        "write": "Write the first part, then append the others with run: cat >> FILE <<'END'.",
    }
    return Wording(f"{f.get('path')!r}{measured}{limit}.", hints.get(f["operation"], "Take a smaller part of it."))


def _timeout(f: Fields) -> Wording:
    if f.get("browser") or f.get("browser_busy"):
        return page_words.timed_out(f)
    seconds = f.get("seconds")
    allowed = f"{seconds:g} seconds" if isinstance(seconds, int | float) else "its time"
    longer = f"timeout_seconds above {seconds:g}" if isinstance(seconds, int | float) else "a longer timeout_seconds"
    if f["operation"] == "search":
        return Wording(
            f"search did not end within {allowed}; what it found is in the result.",
            "Narrow the path, the glob or the pattern.",
        )
    if f.get("queued"):
        holder = f.get("id") or "another command"
        kill = f", or end {holder} with kill" if f.get("id") else ""
        return Wording(
            f"The command was not started: {holder} still held the session {f.get('session')!r} after {allowed}.",
            Hint(
                f"Use another session, or session=null{kill}.",
                cli="Wait until that has ended, or give a longer --timeout.",
            ),
            "kill" if f.get("id") else None,
            True,
        )
    if f["operation"] != "run":
        return Wording(
            f"{f['operation']} did not end within {allowed}.", f"Give {longer}, or take less at once.", retryable=True
        )
    return waits.timed_out(f)


def _cpu(f: Fields) -> Wording:
    left, seconds = f.get("survivors"), f.get("seconds")
    after = f"{left} of its processes could not be killed." if left else "Nothing it started is left running."
    used, limit = (f"{value:.3g}" if isinstance(value, int | float) else "all" for value in (f.get("used"), seconds))
    return Wording(
        f"The command used {used} seconds of processor time and was killed: the limit is {limit} s. {after}",
        Hint(
            "See whether its loop ends; let it compute less, or do it in several commands. This limit cannot be raised from here.",
            "Let it compute less, or do it in several commands.",
            f"Let it compute less, or give cpu_seconds above {limit} as far as the sandbox's limits allow.",
        ),
    )


def _no_match(f: Fields) -> Wording:
    if f.get("white_space"):
        return Wording(
            f"old_text was not found in {f.get('path')!r}: line {f.get('line')} differs from it only in white space "
            f"({f['white_space']}).",
            "Give old_text with exactly the white space of the file.",
            "edit",
        )
    near = " The nearest lines are shown." if f.get("candidates") else ""
    return Wording(
        f"old_text was not found in {f.get('path')!r}.{near}",
        "Read the lines again and give old_text exactly as they stand, white space included.",
        "read",
    )


def _several(f: Fields) -> Wording:
    return Wording(
        f"old_text occurs {f.get('count', 'several')} times in {f.get('path')!r}.",
        "Add the lines around the one you mean to old_text until it is unique, or pass replace_all=true.",
        "edit",
    )


def _too_many(f: Fields) -> Wording:
    if f.get("what") == "sessions":
        names = ", ".join(one_line(str(name)) for name in f.get("names", []))
        return Wording(
            f"There are already {f.get('limit')} sessions, which is the limit{f': {names}' if names else ''}.",
            "Use one of them, end one with end_session, or use session=null, which needs no session.",
            "end_session",
        )
    if f.get("what") == "actions":
        return Wording(
            f"{f.get('limit')} commands are already running, which is the limit.",
            "Wait for one to end, then run it again.",
            "run",
            True,
        )
    running = ", ".join(one_line(str(each)) for each in f.get("live", []))
    return Wording(
        f"There are already {f.get('limit')} background commands, which is the limit{f': {running}' if running else ''}.",
        "Kill one that is no longer needed, or wait for one to end.",
        "kill",
        True,
    )


def _unknown_command(f: Fields) -> Wording:
    running = [one_line(str(each)) for each in f.get("live", [])]
    known = ", ".join(str(k) for k in f.get("known", []))
    if f.get("owner"):
        hint = f"{f.get('id')} is a pid, and it belongs to {f['owner']}: use that id."
    elif running:
        hint = f"Ids come from run and are not pids. Running: {', '.join(running)}."
    elif known:
        hint = f"No command is running; these have ended, and only their output can be read: {known}."
    else:
        hint = "No command was run in this sandbox yet: ids come from run."
    return Wording(f"There is no command with the id {f.get('id')!r}.", hint, "processes" if running else None)


def _user_not_allowed(f: Fields) -> Wording:
    user = repr(f.get("user", "another user"))
    own = repr(f.get("own", "its own user"))
    if "id" in f:
        return Wording(
            f"The command {f['id']!r} runs as the user {user}, not as the sandbox's own user.",
            f"Only the program that started it can stop it or type into it, with user={user}; logs shows its output.",
        )
    if f.get("isolated") is False:
        return Wording(
            f"Commands run as {own} here, the user of this process, and not as {user}.",
            Hint(
                "Leave user out, or use DockerEnvironment(profile='root-on-request').",
                cli="Leave --user out, or --local (then with --profile root-on-request).",
            ),
        )
    return Wording(
        f"This sandbox runs commands only as {own}, not as {user}.",
        Hint(
            "Leave user out, or make the sandbox with profile='root-on-request' (or 'root').",
            cli="Leave --user out, or make the sandbox with --profile root-on-request (or root).",
        ),
    )


def _range(f: Fields) -> Wording:
    unit = "line" if "total_lines" in f else "byte"
    total = f.get("total_lines", f.get("size_bytes"))
    if total == 0:
        return Wording(f"{f.get('path')!r} is empty.", "There is nothing in it to read.")
    return Wording(
        f"{f.get('path')!r} ends before that: it has {count_of(total, unit)}.",
        f"Start at {unit} {total} or before.",
        "read",
    )


def _start_problem(f: Fields, otherwise: str) -> str:
    """Say why a program that is there cannot be started."""
    if f.get("missing"):
        return f"it needs {f['missing']!r}, which is not there"
    if f.get("machine"):
        return f"it is a program for {f['machine']}, and this sandbox runs on another machine"
    return str(f.get("errno", otherwise))


def _program_not_found(f: Fields) -> Wording:
    message = f"The program {f.get('program', '')!r} could not be started: {_start_problem(f, 'not found')}."
    if f.get("missing"):
        return Wording(message, "Correct the first line of the script, or use a program that is built for this image's C library.")
    return Wording(
        message,
        Hint(
            "Check its name and PATH, or give shell text as command.",
            cli="Check its name and PATH; shell text goes to a shell, as in: -- sh -c 'TEXT'.",
        ),
    )


def _program_not_executable(f: Fields) -> Wording:
    message = f"The program {f.get('program', '')!r} could not be started: {_start_problem(f, 'not executable')}."
    if f.get("machine"):
        return Wording(message, "Use a program that is built for this machine.")
    return Wording(message, "Make it executable with chmod +x, or start it through its interpreter.")


def _no_folder(f: Fields) -> Wording:
    cwd = f.get("cwd")
    message = f"The command could not start in {cwd!r}: {f.get('errno', 'not found')}."
    if f.get("reset"):
        return Wording(message, "The session is back in the workspace: run the command again.", "run", True)
    if f.get("missing") is None and f.get("part") is None:
        return Wording(message, "Give a cwd that exists; list shows what is there.", "list")
    words = path_words.FAULTS[
        ErrorCode.path_not_found
        if f.get("missing") is not None
        else ErrorCode.permission_denied
        if f.get("mode") is not None
        else ErrorCode.not_a_directory
    ]({**f, "path": cwd, "operation": "enter"})
    return Wording(f"The command could not start: {words.message}", words.hint, words.next_tool)


def _io_error(f: Fields) -> Wording:
    if f.get("leased"):
        program = f" ({one_line(str(f['program']))})" if f.get("program") else ""
        holder = f"the process with the pid {f['holder']}{program}" if f.get("holder") else "another process"
        seconds = f.get("lease_break_seconds")
        wait = "Try again later: the lease ends when that process is done with the file."
        if isinstance(seconds, int) and seconds > 0:
            wait = f"Try again in {duration(seconds + 5)}: the kernel takes the lease away {duration(seconds)} after the first try."
        return Wording(
            f"{f.get('path')!r} cannot be opened now: {holder} holds a lease on it.",
            f"{wait} Or end that process if it is not needed: processes shows the command that it belongs to.",
            "processes",
            True,
        )
    problem = f.get("problem") or f.get("errno") or "the kernel reported an error"
    if f["operation"] == "browse":
        return Wording(
            f"The page could not be read: {problem}.",
            "Call browse again, or fetch the page with run: curl -sSL URL.",
            "browse",
            True,
        )
    where = f" on {f['path']!r}" if "path" in f else ""
    return Wording(
        f"{f['operation']}{where} failed: {problem}.",
        "Look at the state of the files with list, then choose another way.",
    )


def _no_process(f: Fields) -> Wording:
    running = ", ".join(one_line(str(each)) for each in f.get("live", []))
    limit = f"all {f['limit']} processes and threads" if f.get("limit") else "all processes"
    return Wording(
        f"The command could not start: {limit} that this sandbox may have are in use.",
        f"Kill what is not needed, then run it again. Running: {running}."
        if running
        else "See with processes what runs, and kill what is not needed; then run it again.",
        "kill",
        True,
    )


def _kill_failed(f: Fields) -> Wording:
    count = f.get("survivors")
    message = f"{count_of(count, 'process')} of {f.get('id')} could not be killed"
    if not f.get("pid"):
        return Wording(f"{message}.", "Call kill again.", "kill", True)
    one = f"process {f['pid']} ({one_line(str(f.get('program') or 'unknown'))})"
    if f.get("tracer_id"):
        return Wording(
            f"{message}: {one} is traced by process {f.get('tracer')} of {f['tracer_id']}.",
            f"End {f['tracer_id']} first, with kill(id={f['tracer_id']!r}): then that process ends, too.",
            "kill",
        )
    if f.get("tracer"):
        return Wording(
            f"{message}: {one} is traced by process {f['tracer']}.",
            "End its tracer first: then that process ends, too.",
            "run",
        )
    return Wording(
        f"{message}: {one} is {one_line(str(f.get('state')))}.",
        "It ends as soon as the kernel lets it. Carry on, and check with processes later.",
        "processes",
        True,
    )


def _transfer_incomplete(f: Fields) -> Wording:
    if f.get("answer_dropped"):
        return Wording(
            "The same request was carried out before, and its answer is not kept any more.",
            "Look at what it should have changed before you send it again, with another request id.",
        )
    return Wording(
        f"The transfer did not complete: {f.get('problem', 'it was cut off')}.", "Send it again.", None, True
    )


def _no_space(f: Fields) -> Wording:
    where = f" for {f['path']!r}" if "path" in f else ""
    kept = ""
    if f.get("existed") is not None:
        kept = " The file is as it was before." if f["existed"] else " No file was made."
        kept = f"{kept[:-1]}; only its folder was made." if f.get("folder_made") else kept
    return Wording(
        f"No space is left in the sandbox{where}.{kept}",
        "Look with du for what takes the space; delete what you made and do not need, then try again.",
    )


def _connection(f: Fields) -> Wording:
    message = f"{f.get('url', 'The address')!r} could not be reached: {f.get('problem', 'no connection')}."
    running = [one_line(str(each)) for each in f.get("live", [])]
    port = f.get("port")
    if running:
        ident = running[-1].partition(" ")[0]
        return Wording(
            message,
            f"If {' or '.join(running)} is the server, wait until it listens: wait_for(id={ident!r}, port={port}).",
            "wait_for",
            True,
        )
    if f.get("own"):
        return Wording(
            message,
            f"Nothing listens there. Start the server with run and background=true, then use wait_for(port={port}).",
            "run",
            True,
        )
    return Wording(message, "Check the address; if it is right, try again later.", retryable=True)


_ONLY_LOOK = frozenset({"list", "search", "read", "logs", "processes", "usage", "screen", "wait_for"})


def _too_large_answer(f: Fields) -> Wording:
    if "url" in f:
        return Wording(f"The answer of {f['url']!r} is too large.", "Download it with a command, then read the file.")
    measured = f"would be {size(f['size_bytes'])}" if "size_bytes" in f else "is too long"
    return Wording(
        f"The answer {measured}; the limit is {size(f.get('limit'))}.",
        Hint(
            "The command was carried out; all of its output can be read with logs.",
            host="Keep less of the output, with a lower keep_output_bytes: all of it can be read with logs. "
            "The command was carried out.",
        )
        if f.get("operation") == "run"
        else "Ask for less: a smaller max_entries or depth, or one of the folders in it."
        if f.get("operation") == "list"
        else "Ask for less: a part of it, or fewer entries."
        + ("" if f.get("operation") in _ONLY_LOOK else " It may have been carried out."),
    )


_FAULTS: dict[ErrorCode, Callable[[Fields], Wording]] = {
    **path_words.FAULTS,
    **page_words.FAULTS,
    ErrorCode.path_exists: lambda f: Wording(
        f"{f.get('path')!r} exists already.",
        "Look at it; then choose another name, or call move with overwrite=true, which replaces it."
        if f.get("operation") == "move"
        else "Choose another name.",
    ),
    ErrorCode.path_invalid: _invalid_path,
    ErrorCode.path_changed: lambda f: Wording(
        f"{f.get('path')!r} was changed by something else while it was edited, so the edit was not made.",
        "Read it again, then edit. If this happens again, find with processes the command that writes to it, and end that first.",
        "read",
        True,
    ),
    ErrorCode.is_a_directory: lambda f: Wording(
        f"{f.get('path')!r} is a folder.",
        "Delete it with recursive=true." if f["operation"] == "delete" else "List it, or name a file in it.",
        "delete" if f["operation"] == "delete" else "list",
    ),
    ErrorCode.directory_not_empty: lambda f: Wording(
        f"{f.get('path')!r} is a folder that is not empty.",
        "See with list what is in it. Pass recursive=true to delete the folder with all of that.",
        "delete",
    ),
    ErrorCode.file_too_large: _too_large,
    ErrorCode.not_text: lambda f: Wording(
        f"{f.get('path')!r} is not a text file.",
        f"Look at its bytes with run: od -A d -t x1z -N 64 {path_words.shell_word(f.get('path'))}, or use a tool for its format.",
        "run",
    ),
    ErrorCode.range_outside_file: _range,
    ErrorCode.text_not_found: _no_match,
    ErrorCode.text_not_unique: _several,
    ErrorCode.invalid_pattern: lambda f: Wording(
        f"The pattern {f.get('pattern')!r} is {'too slow' if f.get('slow') else 'not a valid regular expression'}: "
        f"{f.get('problem', 'syntax error')}.",
        "Correct it, or pass literal=true to search for plain text.",
        f["operation"] if f["operation"] in ("search", "wait_for") else "search",
    ),
    ErrorCode.invalid_arguments: lambda f: Wording(
        f"The arguments of {f['operation']} are invalid: {f.get('problem')}.",
        "Correct them and call it again.",
        f["operation"],
    ),
    ErrorCode.no_space: _no_space,
    ErrorCode.unsafe_archive: lambda f: Wording(
        f"The archive was refused: {f.get('problem', 'unsafe entry')}.",
        "Send an archive of plain files with relative names.",
    ),
    ErrorCode.transfer_incomplete: _transfer_incomplete,
    ErrorCode.timeout: _timeout,
    ErrorCode.cpu_limit: _cpu,
    ErrorCode.cancelled: lambda f: Wording(f"{f['operation']} was cancelled.", "Start it again if it is still needed."),
    ErrorCode.program_not_found: _program_not_found,
    ErrorCode.program_not_executable: _program_not_executable,
    ErrorCode.session_exists: lambda f: Wording(
        f"There is a session {f.get('session', 'of that name')!r} already.",
        "Use that one, end it first, or give another name.",
    ),
    ErrorCode.session_not_found: lambda f: Wording(
        f"There is no session {f.get('session', 'of that name')!r}.",
        "It was ended, or never opened: open it first, or run the command without naming a session.",
    ),
    ErrorCode.user_not_allowed: _user_not_allowed,
    ErrorCode.user_not_found: lambda f: Wording(
        f"The image has no user {f.get('user', 'of that name')!r}.",
        "Give a name that is in the image's /etc/passwd, or a number, as in user='1000'.",
    ),
    ErrorCode.shell_not_found: lambda f: Wording(
        "This image has no shell to run command text."
        if "program" not in f
        else f"The image's shell {f['program']!r} could not be started: {_start_problem(f, 'it cannot be run')}.",
        Hint(
            "No command can be run here. Use the tools for files; if the task needs a command, finish and say so.",
            "Use another image, or one with a shell in it.",
            "Give argv: the program and its arguments, as a list.",
        ),
    ),
    ErrorCode.working_directory_invalid: _no_folder,
    ErrorCode.arguments_too_long: lambda _: Wording(
        "The command line is longer than the system allows.",
        Hint(
            "Put the data into a file with write, and have a short command read that file.",
            "Put the data into a file, or pass it on standard input.",
            "Put the data into a file with write, or pass it as stdin.",
        ),
    ),
    ErrorCode.too_many_processes: _no_process,
    ErrorCode.io_error: _io_error,
    ErrorCode.too_many_commands: _too_many,
    ErrorCode.unknown_command: _unknown_command,
    **waits.FAULTS,
    ErrorCode.kill_failed: _kill_failed,
    ErrorCode.commands_running: lambda f: Wording(
        f"The sandbox is still running {count_of(f.get('count'), 'command')}: {', '.join(map(str, f.get('ids', [])))}.",
        "Wait for them, kill them, or pass kill=True.",
        "kill",
    ),
    ErrorCode.too_many_files: lambda f: Wording(
        f"There are more than {f.get('limit')} files and folders."
        if "path_bytes" not in f
        else f"The paths of all files and folders together take more than {size(f['path_bytes'])}.",
        "Delete what is not needed, or keep it in archives.",
    ),
    ErrorCode.invalid_url: lambda f: Wording(
        f"{f.get('url')!r} is not an address that can be opened: {f.get('problem', 'malformed')}.",
        "Give an http:// or https:// address.",
    ),
    ErrorCode.network_denied: network_words.denied,
    ErrorCode.connection_failed: _connection,
    ErrorCode.too_many_redirects: lambda f: Wording(
        f"{f.get('url')!r} redirects again and again"
        + (f", last to {f['location']!r}" if f.get("location") else "")
        + ", and was not followed any further.",
        "Find out why it redirects, in the server's code or with run: curl -sI URL; or open another address.",
    ),
    ErrorCode.response_too_large: _too_large_answer,
}
