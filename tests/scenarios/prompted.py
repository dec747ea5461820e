"""A brain that knows nothing but its prompt: what it does next it reads there, and so it does how a tool is called.

A prompt that hides a result, the state of the environment or the form of a call makes it fail, as it would a model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from agent import Prompt, Response

Args = Mapping[str, Any]


class Seen:
    """A prompt, as its reader sees it."""

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt
        contents = [(m["role"], str(m.get("content") or "")) for m in prompt.messages]
        self.system = contents[0][1]
        self.now = next((text for _, text in reversed(contents) if text.startswith("# Environment now")), "")
        results = [text for role, text in contents if role == "tool" or text.startswith("Result")]
        self.result = results[-1] if results else ""
        self.results = len(results)
        self.last = contents[-1][1]
        self.said = "\n".join(text for _, text in contents[1:])

    def name_of(self, does: str) -> str:
        """How the tool is called that says it does this."""
        for tool in self.prompt.tools:
            if tool["function"]["description"].startswith(does):
                return str(tool["function"]["name"])
        found = re.search(rf"^## (\S+)\n{re.escape(does)}", self.system, re.MULTILINE)
        assert found, f"the prompt does not say how to: {does}"
        return found[1]


def by_calls(seen: Seen, does: str, args: Args, thought: str) -> Any:
    name = seen.name_of(does)
    call = {"id": f"call_{seen.results}", "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
    return {"role": "assistant", "content": thought, "tool_calls": [call]}


def by_json(seen: Seen, does: str, args: Args, thought: str) -> Any:
    assert '{"tool": "NAME", "args": {...}}' in seen.system
    return f"{thought}\n{json.dumps({'tool': seen.name_of(does), 'args': args})}"


def by_tags(seen: Seen, does: str, args: Args, thought: str) -> Any:
    """In the form that the prompt shows: one text as the body, several as elements."""
    tag = seen.name_of(does)
    form = re.search(rf"^<{tag}[^>]*>\n(\w+)\n</{tag}>|^<{tag}>\n<", seen.system, re.MULTILINE)
    assert form, f"the prompt shows no form of <{tag}>"
    if form[1]:
        for name in args.keys() - {form[1]}:
            assert f"\n- {name} (" in seen.system, f"the prompt does not say that <{tag}> has {name}"
        values = {k: v if isinstance(v, str) else json.dumps(v) for k, v in args.items()}
        rest = "".join(f' {k}="{v}"' for k, v in values.items() if k != form[1])
        return f"{thought}\n<{tag}{rest}>\n{args[form[1]]}\n</{tag}>"
    parts = "".join(f"<{k}>{chr(10) if chr(10) in str(v) else ''}{v}</{k}>\n" for k, v in args.items())
    return f"{thought}\n<{tag}>\n{parts}</{tag}>"


def by_commands(seen: Seen, does: str, args: Args, thought: str) -> Any:
    """In the form that the prompt shows: words by place, then lines up to a marker."""
    name = seen.name_of(does)
    form = re.search(rf"^Form:\n{name}((?: \S+)*)(?:\n(\w+)\n(end_of_\w+))?$", seen.system, re.MULTILINE)
    assert form, f"the prompt shows no form of {name}"
    words = re.findall(r"\w+", form[1])
    values = {k.upper(): v for k, v in args.items()}
    if values.keys() - {*words, "START", "END", form[2]}:
        assert f"all as one JSON object: {name} {{" in seen.system, f"the prompt does not say how {name} gets other arguments"
        return Response(f"{thought}\n```\n{name} {json.dumps(args)}\n```")
    line = " ".join([name, *(str(values[w]) for w in words if w in values)])
    if "START:END" in form[1]:
        line = f"{name} {args['start']}:{args['end']}"
    if form[2]:
        text = str(values[form[2]])
        line = f"{line}\n{text}{'' if text.endswith(chr(10)) or not text else chr(10)}{form[3]}"
    return Response(f"{thought}\n```\n{line}\n```")


PENS: Mapping[str, Callable[[Seen, str, Args, str], Any]] = {
    "function_calling": by_calls, "json": by_json, "tags": by_tags, "fenced": by_commands,
}  # fmt: skip
