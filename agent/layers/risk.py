"""How much harm a call can do, judged by rules. Pure: nothing is carried out or looked up.

The rules see texts, so they can be evaded: they are an alarm, and the sandbox is the wall. What they cannot judge is not low.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any

from sandbox.environment.base import ActionLike
from sandbox.frozen import dataclass

# A call with more text than this is not checked: nobody could read it for an approval either.
MOST_CHARS = 200_000


class Risk(IntEnum):
    """Levels of risk, in order. ``unknown`` means that nothing is known about the tool, and is above medium."""

    low = 1
    medium = 2
    unknown = 3
    high = 4


@dataclass(frozen=True, slots=True)
class Rating:
    """The risk of a call and why, in words."""

    risk: Risk
    reasons: tuple[str, ...] = ()


Analyzer = Callable[[ActionLike, Mapping[str, Any]], Rating]

_READS = frozenset(
    {"read", "list", "search", "logs", "screen", "processes", "usage", "wait_for", "resize"}
)
_WRITES = frozenset({"write", "edit", "make_dir", "move", "kill", "end_session", "delete"})
_FETCH = r"\b(?:curl|wget|fetch|aria2c|http)\b"
_SHELL = r"(?:/\S{0,200}/)?(?:ba|z|da|k|fi)?sh|python[\d.]*|perl|ruby|node|php|source|eval|xargs"
_DEVICE = r"/dev/(?:sd|nvme|vd|xvd|hd|mmcblk|mem\b|kmem|port\b|disk|dm-|loop|mapper)"
_HIDDEN_PLACES = (
    r"(?:/etc/(?:shadow|sudoers|gshadow)|(?:^|[\s'\"=/~])\.(?:ssh|aws|gnupg|netrc|git-credentials|npmrc|pypirc|docker/config|kube/config|env)\b"
    r"|\bid_(?:rsa|ed25519|ecdsa)\b|/proc/\S{1,80}/environ|\bprintenv\b|(?:^|[;&|]\s*)env\s*(?:$|[;&|>]))"
)
_RULES: tuple[tuple[Risk, str, re.Pattern[str]], ...] = tuple(
    (risk, why, re.compile(pattern, re.IGNORECASE | re.MULTILINE))
    for risk, why, pattern in (
        (Risk.high, "runs what it fetches", rf"{_FETCH}[^\n;]{{0,500}}\|\s*(?:sudo\s+)?(?:{_SHELL})\b"),
        (Risk.high, "runs what it fetches", rf"(?:{_SHELL})\s+(?:-\w+\s+)*[\"']?(?:<\(|\$\(|`)\s*{_FETCH}"),
        (Risk.high, "runs what it decodes", rf"\b(?:base64|xxd|openssl)\b[^\n;]{{0,500}}\|\s*(?:sudo\s+)?(?:{_SHELL})\b"),
        (Risk.high, "touches raw devices",
         rf"(?:\bof=|>\s*|\b(?:mkfs\S{{0,9}}|wipefs|shred|fdisk|parted|dd)\b[^\n;]{{0,300}}){_DEVICE}"),
        (Risk.high, "makes or wipes a file system", r"\b(?:mkfs(?:\.\w+)?|wipefs|fdisk|parted|sgdisk)\b"),
        (Risk.high, "looks for secrets", _HIDDEN_PLACES),
        (Risk.high, "starts processes without end", r":\s*\(\s*\)\s*\{|\bfork\s*bomb\b"),
        (Risk.high, "changes privileges", r"\b(?:sudo|su|setcap|chown\s+root|chmod\s+(?:-\w+\s+)*[ugo]*\+?s)\b"),
        (Risk.high, "sends to other machines", rf"{_FETCH}[^\n]{{0,500}}(?:\s-(?:d|F|T)\b|--(?:data|form|upload|post)\S*)"),
        (Risk.high, "sends to other machines", r"\b(?:nc|ncat|netcat|socat|scp|rsync|sftp|ssh|telnet)\b|/dev/(?:tcp|udp)/"),
        (Risk.high, "publishes", r"\bgit\s+push\b|\b(?:twine|npm|cargo|gem)\s+(?:upload|publish|push)\b|\bdocker\s+push\b"),
        (Risk.medium, "uses the network", _FETCH),
        (Risk.medium, "uses the network", r"\b(?:pip3?|uv|npm|yarn|pnpm|apt|apt-get|cargo|go|gem)\s+(?:install|add|get)\b"),
        (Risk.medium, "uses the network", r"\bgit\s+(?:clone|fetch|pull)\b"),
        (Risk.medium, "throws changes away", r"\bgit\s+(?:reset\s+--hard|clean\s+-\w*f|filter-branch|checkout\s+--)"),
    )
)  # fmt: skip
_REMOVAL = re.compile(r"\brm\b((?:\s+(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|<>]+))+)|\bfind\b[^\n;]{0,500}-delete\b")


def rating_of(action: ActionLike, args: Mapping[str, Any], analyzers: Iterable[Analyzer]) -> Rating:
    """Return the highest rating of ``analyzers``; one that raises counts as high. Without analyzers the risk is unknown."""
    found = [_asked(analyzer, action, args) for analyzer in analyzers]
    if not found:
        return Rating(Risk.unknown, ("is judged by no analyzer",))
    worst = max(rating.risk for rating in found)
    reasons = dict.fromkeys(reason for rating in found if rating.risk == worst for reason in rating.reasons)
    return Rating(worst, tuple(reasons))


def by_pattern(action: ActionLike, args: Mapping[str, Any]) -> Rating:
    """Judge a call by the operation of the sandbox that its tool is bound to, and by the texts in its arguments.

    The name of a tool does not count: a server, or a function, may use any name.
    """
    name = str(getattr(action, "operation", None) or "")
    if name in _READS and not _texts_of_paths(args):
        return Rating(Risk.low)
    texts = list(_texts(args))
    if sum(map(len, texts)) > MOST_CHARS:
        return Rating(Risk.high, ("is too long to check",))
    looked_at = [
        text for key, text in _by_key(args) if not (name in _WRITES and key in ("content", "new_text", "old_text"))
    ]
    found = [(risk, why) for text in looked_at for risk, why, rule in _RULES if rule.search(_unfolded(text))]
    found += [(Risk.high, "deletes outside of the workspace") for text in looked_at if _deletes_outside(text)]
    if name == "delete":
        found.append((Risk.medium, "deletes"))
    own = Risk.low if name in _READS | _WRITES or name in ("run", "send") else _of_metadata(action)
    worst = max([own, *(risk for risk, _ in found)])
    reasons = dict.fromkeys(why for risk, why in found if risk == worst)
    return Rating(worst, tuple(reasons) or (("is a tool about which nothing is known",) if worst is Risk.unknown else ()))


def _of_metadata(action: ActionLike) -> Risk:
    """What the tool says of itself (``risk``: low, medium or high), or nothing."""
    said = str((getattr(action, "metadata", None) or {}).get("risk"))
    return Risk.__members__.get(said, Risk.unknown)


def _asked(analyzer: Analyzer, action: ActionLike, args: Mapping[str, Any]) -> Rating:
    try:
        return analyzer(action, args)
    except Exception as error:  # noqa: BLE001 - one that cannot judge has not said that it is harmless
        return Rating(Risk.high, (f"could not be judged ({type(error).__name__})",))


def _texts(value: Any) -> Iterator[str]:
    for _, text in _by_key(value):
        yield text


def _by_key(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in ``value`` with the key that it stands under; of a list of words also all of them in one."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _by_key(each, str(name))
    elif isinstance(value, list | tuple):
        if value and all(isinstance(each, str) for each in value):
            yield key, " ".join(value)
        for each in value:
            yield from _by_key(each, key)


def _texts_of_paths(args: Mapping[str, Any]) -> bool:
    """Whether a path among the arguments is one of secrets."""
    secret = re.compile(_HIDDEN_PLACES, re.IGNORECASE | re.MULTILINE)
    return any(secret.search(text) for key, text in _by_key(args) if key in ("path", "source", "url"))


def _unfolded(text: str) -> str:
    """Return a command as the shell reads it: lines joined, quotes and backslashes within words removed."""
    return re.sub(r"(?<=\w)(?:\\|''|\"\")(?=\w)", "", text.replace("\\\n", ""))


def _deletes_outside(text: str) -> bool:
    """Whether an rm names a path outside the workspace, or one that only the shell can expand."""
    for match in _REMOVAL.finditer(_unfolded(text)):
        words = [word.strip("\"'") for word in (match[1] or "").split()]
        recursive = match[1] is None or any(re.fullmatch(r"-\w*[rR]\w*|--recursive", word) for word in words)
        paths = [word for word in words if not word.startswith("-")]
        if recursive and (match[1] is None or any(_is_outside(path) for path in paths)):
            return True
    return False


def _is_outside(path: str) -> bool:
    if path.startswith(("$", "~", "`")) or path in (
        "*",
        ".",
        "..",
        "./",
        "./*",
        "/workspace",
        "/workspace/",
        "/workspace/*",
    ):
        return True
    inside = path.startswith(("/workspace/", "/tmp/")) or not path.startswith("/")  # noqa: S108 - a path of the sandbox
    return not inside or ".." in path.split("/")
