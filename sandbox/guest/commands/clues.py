"""Find out why a command failed from its output and its text: an empty input, a port in use, or what cannot work in a sandbox.

Everything read here was written by commands: it is bounded, and good for no more than a hint. Lives in the reactor's thread.
"""

from __future__ import annotations

import os
import re

from ..files.roots import roots_of
from ..protocol.faults import Fault
from ..watch.procfs import find_descendants
from ..watch.sockets import find_ports, list_tcp_listeners

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .command import Command
    from .processes import Processes

TAIL_BYTES = 8192
TEXT_CHARS, HOLDER_CHARS = 120, 50
COMMAND_CHARS, PROMPT_BYTES = 1000, 200
MOST_PROCESSES, MOST_PORTS = 64, 3
# How programs report the end of their input where they wanted an answer.
_ENDED = re.compile(
    rb"EOFError|EOF when reading|unexpected end of (?:file|input)|stdin is not a (?:tty|terminal)|[Nn]ot a (?:tty|terminal)\b"
    rb"|the input device is not a TTY|Aborted!\s*\Z|no input provided|Inappropriate ioctl for device"
)
# Output that ends with a question, without a line end.
_ASKS = re.compile(rb"(?:\[[yY]/[nN]\]|\([yY](?:es)?/[nN]o?\)|[Pp]assword(?: for [^:\n]*)?|\?)[ \t]*[:>]?[ \t]*\Z")
# A shell script that reads an answer, not lines in a loop or from a pipe.
_SCRIPT_BYTES, MOST_SCRIPTS = 64 * 1024, 5
_WORD = re.compile(r"[\w./~+-]+")
_READS = re.compile(rb"(?:^|[;&\s])read(?:[ \t]+-[a-zA-Z]+)*(?:[ \t]+\"([^\"]*)\"|[ \t]+'([^']*)')?")
_READS_LINES = re.compile(rb"\b(?:while|until)\b|[|<#]")
_LINES, _LINE_BYTES = 2000, 300
_IN_USE = re.compile(rb"[Aa]ddress (?:is )?already in use|EADDRINUSE|[Pp]ort \d+ is (?:already )?in use")
_NUMBER = re.compile(rb"(?<![\d.])\d{2,5}(?![\d.])")
# Programs that cannot do their work in a sandbox, by what they need. Only the names of commands count, not arguments.
_PROGRAMS = {
    "services": "systemctl|service|initctl|rc-service",
    "containers": "docker|podman|nerdctl|docker-compose",
    "packages": "apt-get|apt|dpkg|apk|yum|dnf|microdnf|zypper|pacman",
    "mounts": "mount|umount|unshare|chroot|nsenter|modprobe|losetup",
    "ping": "ping|ping6|traceroute|tracepath|mtr",
    "root": "sudo|su|doas|pkexec",
}
# Programs that fetch packages, with what they then do; the others of them need no network.
_INSTALLS = (
    r"(?:(?:\S*/)?python[\d.]*\s+-m\s+)?pip[\d.]*(?=\s+(?:install|download|wheel))|uv(?=\s+(?:pip|add|sync|run|tool|lock))|uvx|pipx|poetry"
    r"|(?:npm|pnpm|yarn|bun|npx)|cargo|go(?=\s+(?:get|mod|build|install|run|test))|gem|bundle|mvn|gradle|\./gradlew|\./mvnw"
)
_BEFORE_NAME = (
    r"(?:^|[;&|({\n]|\b(?:then|do|else)\b)\s*"
    r"(?:(?:exec|env|nice|time|timeout\s+\S+|nohup|command|sudo(?:\s+-\S+)*|[A-Za-z_]\w*=\S*)\s+)*"
)
_FETCHES = re.compile(rf"{_BEFORE_NAME}({_INSTALLS})(?=\s|;|&|\||$)")
_CANNOT = {kind: re.compile(rf"{_BEFORE_NAME}({names})(?=\s|;|&|\||$)") for kind, names in _PROGRAMS.items()}
_REFUSED = re.compile(
    rb"not found|[Pp]ermission denied|permitted|ead-only file system|are you root|uperuser|annot connect|ailed to connect"
    rb"|not been booted|nreachable|resol(?:ution|ving)|not (?:known|resolve)|[Mm]ust be root|No such file|new privileges"
)


def find_clues(processes: Processes, command: Command, args: dict[str, Any]) -> list[dict[str, Any]]:
    """Return notices that explain why ``command`` failed; [] if it did not fail, or was stopped."""
    exit_code, signal_name = command.outcome
    if command.stop_reason is not None or signal_name is not None or not exit_code:
        return []
    tail = command.output.tail()[-TAIL_BYTES:]
    found = [
        _port_in_use(processes, command, tail),
        _impossible(processes, tail, args),
        _no_index(processes, command, args),
        _input_ended(processes, tail, args),
    ]
    return [notice for notice in found if notice is not None]


def _input_ended(processes: Processes, tail: bytes, args: dict[str, Any]) -> dict[str, Any] | None:
    if args.get("stdin") or args.get("pty") or args.get("stays_open"):
        return None
    asks = _ASKS.search(tail[-PROMPT_BYTES:])
    if asks or _ENDED.search(tail):
        line = tail.rstrip(b"\n").rpartition(b"\n")[2] if asks else b""
        return {"code": "input_ended", "asked": line.decode("utf-8", "replace")[-TEXT_CHARS:].strip()}
    script = _reading_script(processes, args)
    return None if script is None else {"code": "input_ended", **script}


def _reading_script(processes: Processes, args: dict[str, Any]) -> dict[str, Any] | None:
    """Return the shell script named in the command that reads an answer from its input."""
    text = args["command"] if args.get("argv") is None else " ".join(args["argv"])
    names = [word for word in _WORD.findall(text[:COMMAND_CHARS]) if "." in word or "/" in word][:MOST_SCRIPTS]
    roots, workspace = roots_of(processes.place), os.fsdecode(processes.place.workspace)
    with processes.spawner.acting_as_user:
        for name in names:
            path = os.path.join(args.get("cwd") or workspace, name)
            try:
                if roots.is_missing(path):
                    continue
                fd, _ = roots.open_regular(path)
            except Fault:
                continue
            try:
                data = os.read(fd, _SCRIPT_BYTES)
            except OSError:
                continue
            finally:
                os.close(fd)
            is_script = name.endswith((".sh", ".bash")) or re.match(rb"#![^\n]*\b(?:ba|da|z|k)?sh\b", data)
            if is_script and (prompt := _first_prompt(data)) is not None:
                return {"script": name[:TEXT_CHARS], "asked": prompt}
    return None


def _first_prompt(script: bytes) -> str | None:
    """Return the prompt of the first ``read`` in a shell script that waits for an answer, "" if it has no prompt.

    Returns None if there is no such ``read``.
    """
    for line in script.split(b"\n", _LINES)[:_LINES]:
        if len(line) <= _LINE_BYTES and (reads := _READS.search(line)) and not _READS_LINES.search(line):
            return (reads[1] or reads[2] or b"").decode("utf-8", "replace")[:TEXT_CHARS].strip()
    return None


def _port_in_use(processes: Processes, command: Command, tail: bytes) -> dict[str, Any] | None:
    if not _IN_USE.search(tail):
        return None
    listening = {port for _, _, port in list_tcp_listeners()}
    text = tail + b" " + str(command.details.get("text", "")).encode("utf-8", "replace")
    named = {int(number) for number in _NUMBER.findall(text)} & listening
    held: dict[int, Command] = {}
    with processes.spawner.acting_as_user:
        for other in tuple(processes.commands.values()):
            if other is not command and not other.tree_empty and other.runner is not None:
                for port in find_ports(find_descendants(other.runner.pid)[:MOST_PROCESSES]):
                    held.setdefault(port, other)
    ports = sorted(named or held)[:MOST_PORTS]
    if not ports:
        return None
    port = next((each for each in ports if each in held), ports[0])
    holder = held.get(port)
    fields = {} if holder is None else {"id": holder.id, "text": _shorten(str(holder.details.get("text", "")))}
    return {"code": "port_in_use", "port": port, **fields}


def _shorten(text: str) -> str:
    return text if len(text) <= HOLDER_CHARS else text[:HOLDER_CHARS] + "..."


def _impossible(processes: Processes, tail: bytes, args: dict[str, Any]) -> dict[str, Any] | None:
    """Name a program that cannot work here: without root, a service manager or a container engine."""
    unprivileged = processes.isolated and processes.place.uid and args.get("user") is None
    if not unprivileged or not _REFUSED.search(tail):
        return None
    text = _text_of(args)
    for kind, pattern in _CANNOT.items():
        if (kind != "ping" or processes.place.limits.get("network") != "bridge") and (found := pattern.search(text)):
            return {"code": "not_possible", "kind": kind, "program": found[1]}
    return None


def _no_index(processes: Processes, command: Command, args: dict[str, Any]) -> dict[str, Any] | None:
    """Name a program that could not reach the packages it wanted, because the rules of the network refused it."""
    if processes.place.limits.get("network") in ("open", "bridge"):
        return None
    if not any(refusal.get("code") == "network_denied" for refusal in command.refusals.values()):
        return None
    text = _text_of(args)
    found = _FETCHES.search(text)
    return None if found is None else {"code": "not_possible", "kind": "index", "program": found[1].split()[-1]}


def _text_of(args: dict[str, Any]) -> str:
    """Return the beginning of a command as a shell reads it: of ``sh -c TEXT``, the text."""
    argv: list[str] = args.get("argv") or []
    is_shell = len(argv) > 2 and argv[1] == "-c" and argv[0].endswith("sh")
    return str(args.get("command") or (argv[2] if is_shell else " ".join(argv)))[:COMMAND_CHARS]
