"""Mask secrets, in the forms in which programs print them, also in streams.

A mask keeps a secret from being shown by accident. It is not a protection: a program that has a secret can print it letter by
letter.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, quote_plus

# Shorter values occur in texts by chance, and masking them would garble those.
LEAST_CHARS = 8
# A part of a secret that was cut in two is masked from this many characters on.
LEAST_PART = 4
STAR = b"*"
# A guest truncates no text to fewer characters, so only a text of at least this length may end within a secret.
SHORTEST_CUT = 40
_BASE64_LINES = (76, 64)


def forms_of(value: str) -> frozenset[bytes]:
    """Return the bytes as which ``value`` may be printed.

    These are the value itself, UTF-16, base64, hexadecimal, the escapes of URLs, JSON and HTML (where needed, or for every
    character), line ends of a terminal, and its single lines. Base64 is also found inside a longer text, with the alphabet of
    URLs, and in lines of 76 or 64. All forms have at least 8 bytes.
    """
    plain = value.encode("utf-8", "surrogateescape")
    core = value.strip()
    inner = forms_of(core) if core != value else frozenset()
    found = {plain, plain.replace(b"\n", b"\r\n"), plain.hex().encode(), plain.hex().upper().encode()}
    percent = quote(plain, safe="")
    found |= {form.encode() for form in (percent, quote(plain), quote_plus(plain), _lower_percent(percent))}
    for ascii_only in (True, False):
        found.add(json.dumps(value, ensure_ascii=ascii_only)[1:-1].encode("utf-8", "surrogateescape"))
    found |= _in_base64(plain) | _escaped_throughout(value, plain) | _in_html(value)
    found |= {value.encode(code, "surrogatepass") for code in ("utf-16-le", "utf-16-be")}
    lines = [line.strip() for line in plain.splitlines()]
    if len(lines) > 1:  # of a key in several lines, each is secret, except the first and last, which all keys have
        found |= {line for line in lines if not line.startswith(b"-----")}
    return inner | {form for form in found if len(form) >= LEAST_CHARS}


def _escaped_throughout(value: str, plain: bytes) -> set[bytes]:
    """Return the forms in which every character is escaped, needed or not."""
    wide = value.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(wide[at : at + 2], "big") for at in range(0, len(wide), 2)]
    forms = ["".join(f"%{byte:02X}" for byte in plain), "".join(f"%{byte:02x}" for byte in plain)]
    forms += ["".join(f"\\u{unit:04X}" for unit in units), "".join(f"\\u{unit:04x}" for unit in units)]
    forms += ["".join(form.format(ord(char)) for char in value) for form in ("&#{};", "&#x{:x};", "&#x{:X};")]
    return {form.encode() for form in forms}


def _in_html(value: str) -> set[bytes]:
    import html  # its table of names takes 1 ms, and few programs have a secret

    escaped = html.escape(value)
    forms = (
        escaped,
        html.escape(value, quote=False),
        escaped.replace("&#x27;", "&#39;"),
        escaped.replace("&#x27;", "&apos;"),
    )
    return {form.encode("utf-8", "surrogateescape") for form in forms}


def _lower_percent(text: str) -> str:
    return re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), text)


def _in_base64(plain: bytes) -> set[bytes]:
    found = {base64.b64encode(plain), base64.b64encode(plain + b"\n")}
    for before in range(3):  # at each alignment in a longer text: the letters that depend on the value alone
        letters = base64.b64encode(bytes(before) + plain)
        found.add(letters[(0, 2, 3)[before] : (before + len(plain)) * 8 // 6])
    found |= {form.translate(bytes.maketrans(b"+/", b"-_")) for form in found}
    for width in _BASE64_LINES:
        found |= {_in_lines(form, width) for form in tuple(found) if len(form) > width}
    return found


def _in_lines(form: bytes, width: int) -> bytes:
    return b"\n".join(form[at : at + width] for at in range(0, len(form), width))


class Mask:
    """Replaces secrets in bytes and texts. ``secrets`` maps each form to its replacement; None is as many stars as it has bytes."""

    def __init__(self, secrets: Mapping[bytes, bytes | None]) -> None:
        longest_first = sorted((form for form in secrets if form), key=len, reverse=True)
        self._replacements = {
            form: STAR * len(form) if (replacement := secrets[form]) is None else replacement for form in longest_first
        }
        self._texts = {_text(form): _text(replacement) for form, replacement in self._replacements.items()}

    @classmethod
    def of_stars(cls, values: Iterable[str]) -> Mask:
        """Return a mask for every form of these values, in upper and lower case, too, that keeps every length."""
        cases = {case for value in values for case in (value, value.upper(), value.lower())}
        return cls({form: None for case in cases for form in (*forms_of(case), case.encode("utf-8", "replace"))})

    def __bool__(self) -> bool:
        return bool(self._replacements)

    def whole(self, data: bytes) -> bytes:
        """Return ``data`` with every secret in it masked."""
        for form, replacement in self._replacements.items():
            if form in data:
                data = data.replace(form, replacement)
        return data

    def text(self, text: str) -> str:
        """Return ``text`` with every secret in it masked."""
        for form, replacement in self._texts.items():
            if form in text:
                text = text.replace(form, replacement)
        return text

    def names(self, text: str) -> str:
        """Mask a text with host names, where the case of letters may differ."""
        for form, replacement in self._texts.items():
            text = replacement.join(re.split(re.escape(form), text, flags=re.IGNORECASE))
        return text

    def part(self, text: str) -> str:
        """Mask a part of a longer text: also a secret that is cut off at its beginning or end."""
        text = self.text(text)
        for form, replacement in self._texts.items():
            most = min(len(form) - 1, len(text))
            for size in range(most, LEAST_PART - 1, -1):
                if text.endswith(form[:size]):
                    text = text[:-size] + replacement
                    break
            for size in range(most, LEAST_PART - 1, -1):
                if text.startswith(form[-size:]):
                    text = replacement + text[size:]
                    break
        return text

    def fields(self, value: Any) -> Any:
        """Return the fields of a guest's reply with every text in them masked.

        Call it before a message quotes and truncates them, because no mask finds part of a secret. Texts that the guest may have
        truncated are masked at their ends as well.
        """
        return map_texts(value, self._mask_guest_text, self.whole) if self._replacements else value

    def _mask_guest_text(self, text: str) -> str:
        return self.part(text) if len(text) >= SHORTEST_CUT else self.text(text)

    def drawn(self, text: str) -> str:
        """Mask a screen, where a secret may continue on the next line. The number of lines stays the same."""
        for form, replacement in self._texts.items():
            broken = "\n?".join(map(re.escape, form.replace("\n", "")))
            text = re.sub(broken, partial(_with_breaks, replacement), text)
        return text

    def holds(self, data: bytes) -> bool:
        """Return whether there is a secret in ``data``."""
        return any(form in data for form in self._replacements)

    @property
    def longest(self) -> int:
        """Size of the longest form in bytes."""
        return max(map(len, self._replacements), default=0)

    def without_end(self, data: bytes) -> bytes:
        """Return ``data``, the first bytes of an answer, masked if it begins with the last 8 or more bytes of a secret."""
        first = data[:LEAST_CHARS]
        for form in self._replacements if len(first) == LEAST_CHARS else ():
            at = form.find(first, 1)
            if at > 0 and data.startswith(form[at:]):
                return STAR * (len(form) - at) + data[len(form) - at :]
        return data

    def count_held_back(self, data: bytes) -> int:
        """Return how many of the last bytes of ``data`` may be the beginning of a secret."""
        longest = 0
        for form in self._replacements:
            at = data.find(form[:1], max(0, len(data) - len(form) + 1))
            while at >= 0 and len(data) - at > longest:
                if form.startswith(data[at:]):
                    longest = len(data) - at
                    break
                at = data.find(form[:1], at + 1)
        return longest


def _with_breaks(replacement: str, match: re.Match[str]) -> str:
    return replacement + "\n" * match[0].count("\n")


class MaskedStream:
    """Masks bytes that come in pieces: holds back what may be the beginning of a secret until more bytes have come."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return what is certain of the bytes held back and ``data``, masked."""
        masked = self._mask.whole(self._held + data)
        end = len(masked) - self._mask.count_held_back(masked)
        self._held = masked[end:]
        return masked[:end]

    def finish(self) -> bytes:
        """Return the bytes held back."""
        held, self._held = self._held, b""
        return held


def credentials_of(header: str) -> tuple[str, ...]:
    """Return the secrets in the value of a header: all of it, what follows its scheme, and the parts of Basic credentials."""
    scheme, _, rest = header.partition(" ")
    if not rest or scheme.lower() not in ("bearer", "basic", "token", "digest", "apikey"):
        return (header,)
    found = [header, rest.strip()]
    if scheme.lower() == "basic":
        try:
            user, _, password = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return tuple(found)
        found += [f"{user}:{password}", *([password] if len(password) >= LEAST_CHARS else [])]
    return tuple(found)


def map_texts(value: Any, mask_text: Callable[[str], str], mask_bytes: Callable[[bytes], bytes]) -> Any:
    """Return ``value`` with every text and all bytes in it masked: models, mappings, lists and tuples at any depth.

    Models are copied only where something in them changes.
    """
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, bytes):
        return mask_bytes(value)
    if hasattr(type(value), "model_fields"):  # of pydantic, which may not have been needed so far
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        masked = {name: map_texts(each, mask_text, mask_bytes) for name, each in fields.items()}
        return value.model_copy(update={name: each for name, each in masked.items() if each is not fields[name]})
    if isinstance(value, Mapping):
        return {map_texts(k, mask_text, mask_bytes): map_texts(v, mask_text, mask_bytes) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map_texts(each, mask_text, mask_bytes) for each in value)
    return value


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
