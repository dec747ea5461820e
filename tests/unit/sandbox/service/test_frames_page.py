"""The frames and close codes in docs/http.md are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

from pydantic import BaseModel

from sandbox.service import connections
from sandbox.service.connections import Ending
from sandbox.service.routes import terminals, tunnels

PAGE = (Path(__file__).parents[4] / "docs/http.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```jsonl\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
FIRST, LATER, SAID = ([json.loads(line) for line in block.splitlines()] for block in BLOCKS)


def fields_of(model: type[BaseModel]) -> set[str]:
    return set(model.model_fields)


def test_what_a_client_says() -> None:
    for each in FIRST:
        assert terminals._parsed(terminals._FIRST, json.dumps(each)) is not None
    for each in LATER:
        assert terminals._parsed(terminals._CONTROL, json.dumps(each)) is not None
    shown = {each["type"]: set(each) for each in FIRST + LATER}
    assert shown["start"] == fields_of(terminals.StartTerminal)
    assert shown["attach"] | {"user"} == fields_of(terminals.AttachTerminal)
    assert (shown["resize"], shown["signal"]) == (fields_of(terminals.ResizeTerminal), fields_of(terminals.SignalTerminal))


def test_what_the_service_says() -> None:
    """The tests of terminals over a real service see these; here are their names."""
    source = Path(terminals.__file__).read_text(encoding="utf-8")
    said = {kind: set(re.findall(r"(\w+)=", rest)) for kind, rest in re.findall(r'_say\("(\w+)"(.*)\)', source)}
    assert set(said) == {each["type"] for each in SAID}
    for each in SAID:
        assert said[each["type"]] in (set(each) - {"type"}, set())


def test_every_close_code_is_on_the_page() -> None:
    shown = {int(code) for code in re.findall(r"^\| (\d{4}) \|", PAGE, re.MULTILINE)}
    known = {each.code for module in (connections, terminals) for each in vars(module).values() if isinstance(each, Ending)}
    assert shown == (known | {tunnels.CUT, 1009}) - {connections.BEHIND.code}  # such a reader is cut
    assert f"`{tunnels.END}`" in PAGE
