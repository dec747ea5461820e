"""Turn a Dockerfile into a plan. What cannot be carried out is refused with its line: nothing is left out silently."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from sandbox.errors import SandboxError

from .configuration import Configuration, check_variables, expand
from .steps import Copy, Env, Plan, Run, Step, User, Workdir, invalid

MOST_BYTES = 256 << 10
_MOST_EXPANDED = 4 * MOST_BYTES
_SHELL = ("/bin/sh", "-c")
_DIRECTIVE = re.compile(r"#\s*(\w+)\s*=\s*(.*)")
_HEREDOC = re.compile(r"(?<![<\w])\d*<<-?[\"']?[A-Za-z_]")
_OPTION = re.compile(r"--([a-z-]+)(?:=(\S*))?(?:\s+|$)")
_TAR = re.compile(r"\.(tar|tar\.(gz|bz2|xz|zst)|tgz|tbz2?|txz)$")
_NO_EFFECT = "It would have no effect in a sandbox: delete the line."
_REFUSED = {
    "HEALTHCHECK": _NO_EFFECT,
    "MAINTAINER": "Use LABEL.",
    "ONBUILD": "Write its instruction into the Dockerfile that uses the image.",
    "STOPSIGNAL": _NO_EFFECT,
    "VOLUME": _NO_EFFECT,
}


def parse_dockerfile(text: str, *, archive: str = "", arguments: Mapping[str, str] | None = None) -> Plan:
    """Return the plan of a Dockerfile with one stage.

    ``archive`` is the archive of the build context, ``arguments`` are values for its ARGs. Raises SandboxError
    ``invalid_arguments`` with the line: several stages, ADD of an address or an archive, here-documents, options of RUN, and
    whatever is unknown.
    """
    if len(text) > MOST_BYTES:
        raise invalid(f"The Dockerfile has {len(text)} characters; at most {MOST_BYTES} are read.", "Shorten it.")
    reading = _Reading(archive, dict(arguments or {}))
    for number, line in _instructions(text):
        try:
            reading.read(line)
        except SandboxError as error:
            raise invalid(f"Line {number} of the Dockerfile: {error.message}", error.hint) from error
    if not reading.base:
        raise invalid("The Dockerfile has no FROM.", "Begin it with one, as in FROM gamebox/base.")
    if unknown := sorted(set(reading.values) - reading.declared):
        raise invalid(f"The Dockerfile has no ARG {unknown[0]}.", "Leave the value out, or declare the ARG.")
    return reading.plan()


def _instructions(text: str) -> Iterator[tuple[int, str]]:
    """Yield each instruction as one line, with the number of its first line."""
    begun, first, directives = "", 0, True
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("#"):
            found = _DIRECTIVE.fullmatch(stripped) if directives else None
            if found is not None and found[1].lower() == "escape" and found[2].strip() != "\\":
                raise invalid(f"Line {number} of the Dockerfile: another escape character.", "Use the backslash.")
            continue
        directives = False
        if not stripped:
            continue
        first = first or number
        if stripped.endswith("\\"):
            begun += stripped[:-1].rstrip() + " " if not begun else line.rstrip()[:-1].rstrip() + " "
            continue
        yield first, (begun + stripped).strip()
        begun, first = "", 0
    if begun:
        yield first, begun.strip()


@dataclass
class _Reading:
    """What was read so far. ``defaults`` are ARGs before FROM, ``local`` those of the stage."""

    archive: str
    values: dict[str, str]
    base: str = ""
    defaults: dict[str, str] = field(default_factory=dict)
    local: dict[str, str] = field(default_factory=dict)
    declared: set[str] = field(default_factory=set)
    known: dict[str, str] = field(default_factory=dict)  # ENV of this file, for labels and ports
    steps: list[Step] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    ports: list[str] = field(default_factory=list)
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    shell: tuple[str, ...] = _SHELL
    chars: int = 0  # that variables have added to texts

    def plan(self) -> Plan:
        return Plan(
            base=self.base,
            steps=tuple(self.steps),
            labels=tuple(self.labels.items()),
            entrypoint=self.entrypoint,
            command=self.command,
            ports=tuple(self.ports),
        )

    def read(self, line: str) -> None:
        """Read one instruction. Raises SandboxError without the line's number."""
        name, _, rest = line.partition(" ")
        name, rest = name.upper(), rest.strip()
        if name in _REFUSED:
            raise invalid(f"{name} is not supported.", _REFUSED[name])
        readers: dict[str, Callable[[str], None]] = {
            "FROM": self._from,
            "ARG": self._arg,
            "RUN": self._run,
            "COPY": lambda text: self._copy("COPY", text),
            "ADD": lambda text: self._copy("ADD", text),
            "ENV": self._env,
            "LABEL": self._label,
            "WORKDIR": lambda text: self.steps.append(Workdir(self._text(text))),
            "USER": lambda text: self.steps.append(User(self._text(text))),
            "CMD": self._cmd,
            "ENTRYPOINT": self._entrypoint,
            "EXPOSE": lambda text: self.ports.extend(self._expanded(text).split()),
            "SHELL": self._shell,
        }
        if name not in readers:
            raise invalid(f"{name[:40]} is not an instruction.", f"Use {', '.join(sorted(readers))}.")
        if not rest:
            raise invalid(f"{name} has nothing after it.", "Complete the line.")
        if not self.base and name not in ("FROM", "ARG"):
            raise invalid(f"{name} comes before FROM.", "Begin with FROM.")
        readers[name](rest)

    def _from(self, text: str) -> None:
        words = text.split()
        if self.base:
            raise invalid("Several stages are not supported.", "Build the first stage as an image of its own, or use one stage.")
        if words[0].startswith("--"):
            raise invalid(f"FROM with {words[0]} is not supported.", "Images are of the engine's platform: leave it out.")
        if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
            raise invalid("FROM takes one image.", "Write it as in FROM gamebox/base.")
        self.base = expand(words[0], self.defaults)
        if not self.base or self.base == "scratch":
            raise invalid(f"FROM {words[0]} names no image.", "Name one that is on the engine.")

    def _arg(self, text: str) -> None:
        for word in _words(text):
            name, equals, default = word.partition("=")
            self.declared.add(name)
            scope = self.local if self.base else self.defaults
            if name in self.values:
                scope[name] = self.values[name]
            elif equals:
                scope[name] = expand(default, {**scope, **self.known})
            elif name in self.defaults:
                scope[name] = self.defaults[name]
            check_variables(len(scope), sum(len(each) + len(value) for each, value in scope.items()))

    def _run(self, text: str) -> None:
        if option := _OPTION.match(text):
            raise invalid(f"RUN with --{option[1]} is not supported.", "Leave the option out.")
        _refuse_heredoc("RUN", text)
        argv = _exec_form(text)
        env = tuple(self.local.items())
        self._count(sum(len(name) + len(value) for name, value in env))
        if argv is not None:
            self.steps.append(Run(argv=argv, env=env))
        elif self.shell != _SHELL:
            self.steps.append(Run(argv=(*self.shell, text), env=env))
        else:
            self.steps.append(Run(text, env=env))

    def _copy(self, name: str, text: str) -> None:
        owner, mode = "", None
        while option := _OPTION.match(text):
            match option[1]:
                case "chown":
                    owner = self._text(option[2] or "")
                case "chmod" if re.fullmatch(r"0?[0-7]{3,4}", option[2] or ""):
                    mode = int(option[2], 8)
                case "link":  # how the layer is stored, not what is in it
                    pass
                case _:
                    raise invalid(f"{name} with --{option[1]}={option[2]} is not supported.", "Use --chown and --chmod=0755.")
            text = text[option.end() :]
        _refuse_heredoc(name, text)
        *sources, destination = _exec_form(text) or tuple(_words(text))
        if not sources:
            raise invalid(f"{name} has no destination.", "Name the files, then where they go.")
        if len(sources) > 1 and not destination.endswith("/"):
            raise invalid(f"{name} of several files needs a folder.", f"Write its destination as {destination}/.")
        if not self.archive:
            raise invalid(f"{name} needs the files of a build context, and there is none.", "Give the archive with them.")
        target = self._text(destination)
        for source in sources:
            if name == "ADD" and (re.match(r"[a-z]+://|git@", source) or _TAR.search(source)):
                raise invalid(f"ADD of {source[:200]} is not supported.", "Fetch or unpack it with RUN.")
            self.steps.append(Copy(self.archive, self._text(source), target, owner, mode))

    def _env(self, text: str) -> None:
        first, _, rest = text.partition(" ")
        pairs = [(first, rest.strip())] if "=" not in first else _pairs("ENV", text)
        step = Env(tuple((name, self._text(value)) for name, value in pairs))
        self.steps.append(step)
        self.known = dict(Configuration(self.known).after(step).env)

    def _label(self, text: str) -> None:
        self.labels |= {name: self._expanded(value) for name, value in _pairs("LABEL", text)}

    def _cmd(self, text: str) -> None:
        self.command = _exec_form(text) or (*self.shell, text)

    def _entrypoint(self, text: str) -> None:
        self.entrypoint, self.command = _exec_form(text) or (*self.shell, text), None

    def _shell(self, text: str) -> None:
        argv = _exec_form(text)
        if not argv:
            raise invalid("SHELL takes a JSON list.", 'Write it as in SHELL ["/bin/bash", "-c"].')
        self.shell = argv

    def _text(self, text: str) -> str:
        """Replace the ARGs in a text; variables of the image are replaced when the step is carried out."""
        local = {name: value for name, value in self.local.items() if name not in self.known}

        def value(match: re.Match[str]) -> str:
            name = match["plain"] or match["name"]
            if match["escaped"] or name not in local:
                return match[0]
            found = literal(expand(match[0], local))
            self._count(len(found))
            return found

        return _ANY.sub(value, text)

    def _expanded(self, text: str) -> str:
        found = expand(text, {**self.local, **self.known})
        self._count(len(found))
        return found

    def _count(self, chars: int) -> None:
        self.chars += chars
        if self.chars > _MOST_EXPANDED:
            raise invalid(f"Variables add more than {_MOST_EXPANDED} characters to the Dockerfile.", "Shorten their values.")


_ANY = re.compile(r"(?P<escaped>\\[\\$])|\$(?:(?P<plain>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*)[^{}]*\})")


def literal(text: str) -> str:
    """Return a text that ``expand`` turns into ``text``."""
    return text.replace("\\", "\\\\").replace("$", "\\$")


def _refuse_heredoc(name: str, text: str) -> None:
    if _HEREDOC.search(text) and not text.startswith("["):
        raise invalid(f"{name} with a here-document is not supported.", "Join the commands with &&, or copy a script.")


def _exec_form(text: str) -> tuple[str, ...] | None:
    """Return the list of a JSON form, or None for another text."""
    if not text.startswith("["):
        return None
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return tuple(listed) if isinstance(listed, list) and all(isinstance(each, str) for each in listed) else None


def _pairs(name: str, text: str) -> list[tuple[str, str]]:
    pairs = []
    for word in _words(text):
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise invalid(f"{name} has {word[:80]!r}, which is not NAME=VALUE.", "Write NAME=VALUE, in quotes if it has spaces.")
        pairs.append((key, value))
    return pairs


def _words(text: str) -> list[str]:
    """Split a text at spaces outside quotes, and return the words without their quotes, for ``expand``."""
    words: list[str] = []
    word, quote, begun, at = "", "", False, 0
    while at < len(text):
        char = text[at]
        at += 1
        if quote == "'":
            quote = "" if char == "'" else quote
            word += "" if char == "'" else literal(char)
        elif char == "\\" and at < len(text):
            following = text[at]
            at += 1
            keeps = quote and following not in '"\\$'
            word += literal(f"\\{following}" if keeps else following)
            begun = True
        elif char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote, begun = char, True
        elif not quote and char.isspace():
            if begun or word:
                words.append(word)
            word, begun = "", False
        else:
            word += char
    if quote:
        raise invalid("A quote is not closed.", "Close it on the same line.")
    return [*words, word] if begun or word else words
