"""Word notices: what a model should know although the action succeeded. Each function returns (message, hint)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sandbox.envelope import Notice
from sandbox.readers import Hint
from sandbox.text.wording import count_of, duration, one_line, size

from . import network as network_words
from . import waiting as waits

Fields = Mapping[str, Any]
NAME_CHARS = 120


def _oom(f: Fields) -> tuple[str, str]:
    count, limit = f.get("kills"), size(f.get("limit"))
    whose = "of this command" if f.get("certain") else "in this sandbox, while this command ran,"
    process = one_line(str(f["program"])) if f.get("program") else ""
    if f.get("pid"):
        process = f"{process or 'a process'} (pid {f['pid']})"
    more = ""
    if f.get("rss_bytes"):
        more = f"; {process or 'the largest process'} had {size(f['rss_bytes'])} of it"
    elif process:
        more = f"; {'it' if count == 1 else 'one of them'} was {process}"
    return (
        f"The memory limit of {limit} was hit: the kernel killed {count_of(count, 'process')} {whose.rstrip(',')}{more}.",
        "Work on less data at once; files in /dev/shm and /var/tmp count as memory too.",
    )


def _time_left(what: str, hint: str) -> Callable[[Fields], tuple[str, str]]:
    def word(f: Fields) -> tuple[str, str]:
        return (
            f"This sandbox ends in {duration(f.get('seconds'))}{what.format(duration(f.get('limit')))}.",
            hint,
        )

    return word


def _changed(f: Fields) -> tuple[str, str]:
    names = [one_line(str(name))[:NAME_CHARS] for name in f.get("names", [])]
    counts = [int(f[kind]) if isinstance(f.get(kind), int) else 0 for kind in ("created", "modified", "deleted")]
    more = sum(counts) - len(names)
    since = f"Since {f['since']} ended" if f.get("since") else "While this command ran"
    beside = ", and others with it," if f.get("others") else ","
    return (
        f"{since}{beside} files changed: {counts[0]} created, {counts[1]} modified, {counts[2]} deleted: {', '.join(names)}"
        + (f" (and {more} more)." if more > 0 else "."),
        "",
    )


def _torn(f: Fields) -> tuple[str, str]:
    names = [one_line(str(name))[:NAME_CHARS] for name in f.get("names", [])]
    running = ", ".join(map(str, f.get("ids", [])))
    what = (
        f"{f.get('count')} files changed while they were read: {', '.join(names)}"
        if names
        else "Files may have changed"
    )
    return (
        f"{what}{f'; {running} ran meanwhile' if running else ''}: this is not the state of one moment.",
        "To get the state of one moment, do it again when nothing is running.",
    )


def _write_lost(f: Fields) -> tuple[str, str]:
    named = [one_line(str(path))[:NAME_CHARS] for path in f.get("names", [])]
    more = f["count"] - len(named) if isinstance(f.get("count"), int) else 0
    if len(named) == 1 and more <= 0:
        what = f"{named[0]} was written: some of its content is lost."
    else:
        others = f" and {more} more" if more > 0 else ""
        what = f"these files were written: {', '.join(named)}{others}. Some of their content is lost."
    return (
        f"The host's disk ran full a moment after {what}",
        "Look at what is there, and write it again when the host has room.",
    )


def _service_ended(f: Fields) -> tuple[str, str]:
    lines = " | ".join(one_line(line)[:200] for line in str(f.get("lines") or "").splitlines()[-8:])
    return (
        f"The service {f.get('name')} has ended ({one_line(str(f.get('how')))}) and does not come back. "
        + (f'Its last lines: "{lines}".' if lines else "It printed nothing."),
        Hint(
            "Do what can be done without it; if the task needs it, finish and say so, with the reason.",
            host="Correct what made it end, then start another sandbox.",
        ),
    )


def _session_not_kept(f: Fields) -> tuple[str, str]:
    if f.get("longest"):
        why = f"the path of that is longer than {f['longest']} bytes"
        return (
            f"The session is in {one_line(str(f['cwd']))}, not in the folder where this command ended: {why}.",
            "Enter it again in each command, by several cd, each with a part of the path.",
        )
    if f.get("cwd"):
        lost = "the folder and variables it set are lost"
        return (
            f"exec replaced the shell of this command, or it was killed: {lost}, and the session is in {one_line(str(f['cwd']))}.",
            "Run cd and export in a command of their own, without exec.",
        )
    return (
        f"Too large for the session, and lost: {', '.join(map(str, f.get('names', []))) or 'what this command exported'}.",
        "Keep large values in files; a variable may have 128 KiB, all together 1 MiB.",
    )


def _input_ended(f: Fields) -> tuple[str, str]:
    of = one_line(str(f.get("of") or "The command"))
    asked = f" ({one_line(str(f['asked']))!r})" if f.get("asked") else ""
    hint = "Decide on the answer and give it with printf 'ANSWER\\n' | COMMAND or an option, or run it with pty=true and send."
    if f.get("script"):
        return (
            f"{of} failed; {one_line(str(f['script']))} reads an answer{asked} from standard input, which was empty.",
            hint,
        )
    return (f"{of} wanted input{asked}, and its standard input was empty.", hint)


def _port_in_use(f: Fields) -> tuple[str, str]:
    port, holder = f.get("port"), f.get("id") if f.get("id") != f.get("of") else None
    if not holder:
        return (
            f"Port {port} is in use in this sandbox.",
            "Find what listens there with processes, or use another port.",
        )
    text = f" ({one_line(str(f['text']))})" if f.get("text") else ""
    return (
        f"Port {port} is in use: {holder}{text} listens on it.",
        f"Use that server, or end it with kill(id={holder!r}), or take another port.",
    )


_NOT_POSSIBLE = {
    "root": (
        "no command can become root in this sandbox",
        "Run the command without it; write to the workspace, the home or /tmp.",
    ),
    "services": ("no service manager runs in this sandbox", "Start the program itself, with background=true."),
    "containers": (
        "no container engine can be reached from this sandbox",
        "Run the program itself, without a container.",
    ),
    "mounts": (
        "the sandbox does not allow mounts and namespaces, and never will",
        "Do it without them, as with a copy of the files below /tmp.",
    ),
    "ping": (
        "this sandbox has no ICMP, so that it cannot work here",
        "Try a server with curl, as far as the network is open.",
    ),
}


def _no_packages(f: Fields) -> tuple[str, str]:
    """Word that packages cannot be installed. The host adds ``read_only_root`` and ``installers``, see ``SandboxedEnvironment``."""
    also = f", or what {f['installers']} can install" if f.get("installers") else ""
    return (
        f"system packages cannot be installed here: you are not root{', and / is read-only' if f.get('read_only_root') else ''}",
        f"Use what the image has{also}; say in your answer what is missing.",
    )


def _no_index(f: Fields) -> tuple[str, str]:
    """Word that no index of packages was reached. The host adds ``installers``, "" for a sandbox without a package cache."""
    if f.get("installers"):
        return (
            f"it asked for packages from outside the package cache, which serves {f['installers']}",
            "Name packages plainly, without an index or an address of your own; say in your answer what the cache lacks.",
        )
    use = "Use what the image has. If the task needs the package, say so at the end: only the user can open the package cache."
    with_cache = "then pip, uv and npm install through this host, with no other network."
    return (
        "packages cannot be installed here: this sandbox cannot reach a package index",
        Hint(use, f"Start it with --packages: {with_cache}", f"Make it with cache=PackageCache(): {with_cache}"),
    )


def _not_possible(f: Fields) -> tuple[str, str]:
    why, hint = (
        _no_packages(f)
        if f.get("kind") == "packages"
        else _no_index(f)
        if f.get("kind") == "index"
        else _NOT_POSSIBLE.get(str(f.get("kind")), ("it cannot work in this sandbox", "Do it another way."))
    )
    return f"{one_line(str(f.get('program') or 'The program'))}: {why}.", hint


# Only the host gives these; one that a guest sends is ignored.
HOST_NOTICES: dict[str, Callable[[Fields], tuple[str, str]]] = {"service_ended": _service_ended}
NOTICES: dict[str, Callable[[Fields], tuple[str, str]]] = {
    "still_running": waits.still_running,
    "waited_for_session": lambda f: (
        f"This command waited {duration(f.get('seconds'))} for {f.get('id') or 'another'} in the session {f.get('session')!r}.",
        Hint("Run commands that need not wait in another session, or with session=null.", cli=""),
    ),
    "left_running": lambda f: (
        f"The command left {count_of(f.get('count'), 'process')} running, under the id {f.get('id')}.",
        Hint(f"See the output with logs(id={f.get('id')!r}); end it with kill(id={f.get('id')!r}).", cli=""),
    ),
    "output_cut": lambda f: (
        f"The output of {f.get('bytes')} bytes was cut in the middle.",
        f"All of it is in {f.get('path')}: read or search that." if f.get("path") else "Run it again with less output.",
    ),
    "output_not_text": lambda _: (
        "The output is not valid UTF-8: bytes in it were replaced.",
        "For the exact bytes, send it through od -A d -t x1z, or redirect it to a file.",
    ),
    "syntax_error": lambda f: (
        f"The shell could not parse line {f.get('line')} of the command.",
        "Correct its quotes, brackets or keywords, and run it again; commands in the lines before it have been run.",
    ),
    "out_of_memory": _oom,
    "others_killed": lambda f: (
        f"Everything had to be killed to end it: {', '.join(map(str, f.get('ids', []))) or 'no other command'} ended, too.",
        "Start those again if they are needed.",
    ),
    "session_not_kept": _session_not_kept,
    "input_ended": _input_ended,
    "port_in_use": _port_in_use,
    "not_possible": _not_possible,
    "command_ended": waits.command_ended,
    "server_listening": lambda f: (
        f"A server now listens on port {f.get('port')}{', of the command ' + str(f['id']) if f.get('id') else ''}.",
        f"In this sandbox it is at {'[::1]' if f.get('ipv6') else '127.0.0.1'}:{f.get('port')}.",
    ),
    "cpu_limit": lambda f: (
        f"What {f.get('id')} left running used up its processor time of {duration(f.get('limit'))} and was ended.",
        Hint(
            f"See its output with logs(id={f.get('id')!r}); if it is needed, start it again with less to do.",
            host=f"See its output with logs({f.get('id')!r}); start it anew with more cpu_seconds if it is needed.",
        ),
    ),
    "memory_nearly_full": lambda f: (
        f"{size(f.get('used'))} of {size(f.get('limit'))} of memory are used"
        + (f", {size(f.get('files'))} of them by files." if f.get("files") else "."),
        ("Delete files that are not needed. " if f.get("files") else "")
        + "See with processes what uses the memory, and kill what is not needed: a command that needs more than is left is killed.",
    ),
    "processes_nearly_full": lambda f: (
        f"{f.get('used')} of {f.get('limit')} processes and threads are in use.",
        "See with processes what runs, and kill what is not needed.",
    ),
    "too_many_processes": lambda f: (
        f"The limit of {f.get('limit')} processes and threads was hit {count_of(f.get('hits'), 'time')} while this command ran.",
        ("Its exit code was 0, but some of its work may be missing: check that. " if f.get("exit_code") == 0 else "")
        + "Run fewer at once (as with make -j4, or fewer workers), or kill commands that are not needed.",
    ),
    "file_too_large": lambda f: (
        f"A file may be at most {size(f.get('limit'))} here. The command tried to write a larger one, which was cut off there.",
        "Write several smaller files, or compress it on the way.",
    ),
    "too_many_open_files": lambda f: (
        f"A process may have {f.get('limit')} files open here, and the command wanted more.",
        "Close files that are no longer needed, or work on fewer at once.",
    ),
    "network_denied": network_words.refusal,
    "network_cut": network_words.cut,
    "service_refused": network_words.service_refused,
    "service_failed": network_words.service_failed,
    "no_direct_network": lambda f: (
        "The output of the command says that it found no network"
        + (
            ", and this sandbox has none: no command and no page can reach a host outside."
            if f.get("network") == "none"
            else ": nothing leads out of this sandbox directly."
        ),
        "Do without it; if the task needs it, say so at the end. Servers inside the sandbox answer at 127.0.0.1."
        if f.get("network") == "none"
        else "Use a program that takes the proxy in http_proxy and https_proxy, or give this one its address; "
        "DNS, UDP and ping do not work.",
    ),
    "lifetime_ending": _time_left("", "Finish before then: what is still in the sandbox when it ends is lost."),
    "idle_ending": _time_left(
        " unless something is done in it: it may be idle for {}",
        "To keep it, run a command or read a file; only watching, as with logs, processes or wait_for, does not count.",
    ),
    "reconnected": lambda f: (
        f"The connection to the sandbox was lost for {f.get('seconds')} s and is back; nothing was done twice.",
        "Output from the time between was not streamed; all of it is in the result and in logs."
        if f.get("streamed")
        else "",
    ),
    "disk_nearly_full": lambda f: (
        f"{f.get('path')} is full: nothing of its {size(f.get('size'))} is left."
        if f.get("free") == 0
        else f"{f.get('path')} is nearly full: {size(f.get('free'))} of {size(f.get('size'))} are left.",
        "Delete what is not needed before writing more.",
    ),
    "no_space": lambda f: (
        f"The disk limit of {size(f.get('limit'))} was exceeded ({size(f.get('used'))} are used), so the command was killed.",
        "Delete what is not needed; a command that writes more is killed again.",
    ),
    "write_lost": _write_lost,
    "files_changed": _changed,
    "not_kept": lambda f: (
        f"{f.get('count')} entries are not in the checkpoint: {', '.join(map(str, f.get('names', [])))}.",
        "Devices, pipes, sockets and what its user may not read or what lies below 500 folders cannot be kept.",
    ),
    "changed_meanwhile": _torn,
    "root_not_kept": lambda _: (
        "Only workspace and home are kept: what was changed elsewhere in the system, as by installing packages, is not.",
        "Keep what must come back in the workspace or the home.",
    ),
    "files_skipped": lambda f: (
        f"{f.get('count')} entries were skipped: {', '.join(map(str, f.get('names', [])))}.",
        "Links that lead out, devices, sockets and pipes are not copied.",
    ),
}


def host_notice(code: str, fields: Fields) -> Notice:
    """Return a notice of the host itself."""
    return Notice(code, *HOST_NOTICES[code](fields))
