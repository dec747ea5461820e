"""The texts of agents as templates: what is not there is an error, and nothing can be reached, or run for long."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.hub import AgentSpec
from agent.hub.templates import MAX_CHARS, AgentTextError, check, filled, rendered
from sandbox.errors import SandboxError

INPUTS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "task": {"type": "string"},
        "items": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
        "values": {"type": "object"},
        "more": {"type": "string"},
    },
    "required": ["task", "items", "values"],
}


@pytest.mark.parametrize(
    "text",
    [
        "no template { } %",
        "{{ inputs.task }} {{ inputs['task'] | upper | trim }} {{ agent.name }}",
        "{{ inputs.more or 'nothing' }}{% if inputs.more %}{{ inputs.more }}{% endif %}{{ inputs.more | default('-', true) }}",
        "{% for row in inputs.items %}{{ loop.index }}{% for cell in row %}{{ cell }}{% endfor %}{% endfor %}",
        "{{ inputs.values | tojson }}{% for name, value in inputs.values | items %}{{ name }}{{ value }}{% endfor %}",
        "{{ state.inputs.task }}",
        "{% for a in inputs.items %}{% for b in inputs.items %}{{ loop.last }}{% endfor %}{{ loop.length }}{% endfor %}",
        "{% if 1 %}" * 60 + "{% endif %}" * 60,
        "{{ inputs.items | first | join(', ') }}{% raw %}{{ this }}{% endraw %}{# said to nobody #}",
    ],
)
def test_what_may_be_used(text: str) -> None:
    check(text, INPUTS)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("{{ inputs.tsak }}", 1, "no input 'tsak'"),
        ("one\ntwo {{ nothing }}", 2, "'nothing' is undefined"),
        ("\n\n{% if inputs.more %}{{ inputs.typo }}{% endif %}", 3, "no input 'typo'"),  # in a branch that is not taken
        ("{{ state.inputs.tsak }}", 1, "no input 'tsak'"),
        ("{{ inputs[inputs.task] }}", 1, "no input"),
        ("{{ inputs.more }}", 1, "may be left out"),
        ("{{ inputs.task.__class__ }}", 1, "no attribute '__class__'"),
        ("{{ ''.__class__.__mro__ }}", 1, "__class__"),
        ("{{ agent.nothing }}", 1, "nothing"),
        ("{{ inputs.items() }}", 1, "call is not allowed"),
        ("{{ inputs.task | attr('x') }}", 1, "no filter 'attr'"),
        ("{{ inputs.task | center(1000000000) }}", 1, "no filter 'center'"),
        ("{{ inputs.items | tojson(1000000000) }}", 1, "does not take this"),
        ("{{ inputs.task | join(inputs.task) }}", 1, "does not take this"),
        ("{{ 'x' * 1000000000 }}", 1, "mul is not allowed"),
        ("{{ 9 ** 9 ** 9 }}", 1, "pow is not allowed"),
        ("{{ inputs.task ~ inputs.task }}", 1, "concat is not allowed"),
        ("{% for x in range(1000000000) %}{% endfor %}", 1, "call is not allowed"),
        ("{% for a in inputs.items recursive %}{{ loop(a) }}{% endfor %}", 1, "call is not allowed"),
        ("{% macro m() %}{% endmacro %}", 1, "macro is not allowed"),
        ("{% set x = 1 %}", 1, "assign is not allowed"),
        ("{% include '/etc/passwd' %}", 1, "include is not allowed"),
        ("{% import 'os' as os %}", 1, "import is not allowed"),
        ("{{ self }}", 1, "undefined"),
        ("{{ lipsum }}", 1, "undefined"),
        ("x\n{{ (((", 2, "unexpected"),
        ("{% for x in", 1, "unexpected"),
        ("{{ " + "not " * 30_000 + "1 }}", 1, "cannot be read"),
        ("{% if 1 %}" * 120 + "{% endif %}" * 120, 1, "too many levels"),
        ("{{ inputs.values | _timed }}", 1, "no filter '_timed'"),
    ],
)
def test_what_may_not_be_used_is_told_with_its_line(text: str, line: int, said: str) -> None:
    with pytest.raises(AgentTextError) as caught:
        check(text, INPUTS)
    assert (caught.value.line, said in caught.value.what) == (line, True), caught.value.what


def test_an_input_called_as_a_method_of_mappings_is_the_input() -> None:
    assert rendered("{{ inputs.values.keys }}", {"values": {"keys": 7}}, "x") == "7"


def test_an_input_is_no_template() -> None:
    assert rendered("{{ inputs.task }}", {"task": "{{ inputs.secret }}"}, "x") == "{{ inputs.secret }}"


def test_output_is_bounded() -> None:
    rows = [["x" * 1000] for _ in range(1000)]
    with pytest.raises(AgentTextError, match=str(MAX_CHARS)):
        rendered("{% for a in inputs.rows %}{{ a | join }}{% endfor %}", {"rows": rows}, "x")
    grown = "|".join(["{{ inputs.a ", *["join('12345678901234567890')"] * 12, "length }}"])
    with pytest.raises(AgentTextError, match="longer than"):
        rendered(grown, {"a": ["abcdefgh", "i"]}, "x")


@pytest.mark.parametrize(
    "text",
    [
        # A whole input worked over for each of its parts, with no output.
        "{% for a in inputs.rows %}{% if inputs.rows | tojson == '' %}{% endif %}{% endfor %}",
        # Loops in loops that look nothing up.
        "{% for a in inputs.rows %}{% for b in inputs.rows %}{% for c in a %}{% for d in a %}{% endfor %}" + "{% endfor %}" * 3,
    ],
)
def test_time_is_bounded(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.hub.templates.MAX_SECONDS", 0.2)
    rows = [["x" * 20] for _ in range(5000)]
    started = time.process_time()
    with pytest.raises(AgentTextError, match="does not end within"):
        rendered(text, {"rows": rows}, "x")
    assert time.process_time() - started < 20


def test_the_failure_names_agent_line_and_inputs() -> None:
    spec = AgentSpec(name="one", description="One.", inputs=INPUTS)
    with pytest.raises(SandboxError, match=r"'one' .*line 2") as caught:
        filled("\n{{ inputs.b }}", {"task": "x"}, spec)
    assert "inputs.task" in caught.value.hint


@given(st.text(alphabet=st.sampled_from("{}%#| abcinputs.task'\"()[]=~+-*/\n0"), max_size=60))
def test_no_text_does_anything_else(text: str) -> None:
    with contextlib.suppress(AgentTextError):
        check("{{ inputs.task }}" + text, INPUTS)
