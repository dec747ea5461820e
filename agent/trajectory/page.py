"""A run as one HTML page that a person can read: nothing is loaded from anywhere, and nothing that a run says becomes markup."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files

from agent.answers import with_mark
from sandbox.envelope import jsonable
from sandbox.text.invisible import count_invisible, escape_invisible

from .cutting import MOST_CHARS, bounded, cut
from .recorded import Recorded, RecordedStep, money, parts_of
from .wording import answer_text, exit_code, readable_diff, summary

# Lines and characters that stand open; what is longer is folded.
OPEN_LINES = 20
OPEN_CHARS = 4000
# Characters of a text that are set apart since nobody would see them; of more a browser makes a minute's work.
MOST_ODD = 2000
_HUNK = re.compile(r"^@@ -\d+(,\d+)? \+\d+(,\d+)? @@", re.MULTILINE)
# The argument that stands for the whole call, by tool; others are shown as JSON.
_MAIN = {"run": "command", "ipython": "code", "think": "thought"}


def page(run: Recorded) -> str:
    """The page. It runs no script but its own, known by its hash, and may load nothing: its policy says so to the browser."""
    run = bounded(run)
    css, js = _file("page.css"), _file("page.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(js)}'; base-uri 'none'; form-action 'none'"
    )
    title = _text(f"{run.agent or 'run'} {run.run}".strip(), 200)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width"><meta name="referrer" content="no-referrer">\n'
        f"<title>{title}</title>\n<style>{css}</style>\n</head>\n<body>\n{_header(run)}\n"
        '<nav><input id="find" type="search" placeholder="Search the steps" aria-label="Search"><span id="count"></span>'
        '<span class="keys"><kbd>j</kbd> <kbd>k</kbd> step, <kbd>e</kbd> unfold, <kbd>E</kbd> all, <kbd>/</kbd> search</span>'
        "</nav>\n"
        f"<main>\n{''.join(_steps(run, ''))}</main>\n{_end(run)}\n<script>{js}</script>\n</body>\n</html>\n"
    )


def _header(run: Recorded) -> str:
    cost = money(run)
    facts = {
        "agent": run.agent, "model": run.model, "run": run.run, "began": run.began, "status": run.status or "not ended",
        "steps": str(len(run.steps)), "time": _seconds(run.seconds),
        "tokens": f"{run.usage.input_tokens} + {run.usage.output_tokens}" if run.usage.calls else "",
        "cost": "" if not run.usage.calls else "unknown" if cost is None else f"${cost:.4f}",
    }  # fmt: skip
    items = "".join(f"<li>{name}: {_text(value, 500)}</li>" for name, value in facts.items() if value)
    return f'<header><h1>{_text(run.task, 20_000)}</h1><ul class="facts">{items}</ul></header>'


def _end(run: Recorded) -> str:
    handed_in = summary(run.result)
    return f"<footer><p>{_text(run.reason, 2000)}</p>{f'<pre>{_text(handed_in)}</pre>' if handed_in else ''}</footer>"


def _steps(run: Recorded, prefix: str) -> Iterator[str]:
    parts = parts_of(run)
    for step in run.steps:
        yield _step(step, prefix, "".join(_part(part, f"{prefix}{step.number}.") for part in parts.get(step.number, ())))
    for number, part in enumerate(parts.get(None, ()), 1):
        yield _part(part, f"{prefix}part{number}.")


def _part(part: Recorded, prefix: str) -> str:
    """A run that another began: its steps, folded together."""
    told = f"{_text(part.agent, 100)}: {_text(part.task, 300)} ({_text(part.status or 'not ended', 40)})"
    return f"<details open><summary>{told}</summary>{''.join(_steps(part, prefix))}</details>"


def _step(step: RecordedStep, prefix: str, inner: str) -> str:
    number = f"{prefix}{step.number}"
    failed = "" if step.executed and not exit_code(step) else " failed"
    thought = f'<div class="thought">{_text(step.thought)}</div>' if step.thought else ""
    tool = _text(step.tool or "no action", 100)
    return (
        f'<article id="step-{number}" class="step{failed}"><div class="head"><span>{number}</span><span class="tool">{tool}</span>'
        f'<span class="spent">{_spent(step)}</span></div>\n{thought}{_call(step)}{inner}{_answer(step)}{_changes(step)}</article>\n'
    )


def _spent(step: RecordedStep) -> str:
    parts = [_seconds(step.seconds)]
    if step.usage is not None and step.usage.calls:
        parts.append(f"{step.usage.input_tokens} + {step.usage.output_tokens} tokens")
        parts.append("cost unknown" if step.usage.unpriced_calls else f"${step.usage.cost_usd:.4f}")
    return ", ".join(parts)


def _call(step: RecordedStep) -> str:
    if step.tool is None:
        return ""
    main = step.argument(_MAIN.get(step.tool, ""))
    if step.tool == "edit" and step.argument("path"):
        main = f"--- {step.argument('path')}\n{_marked('-', step.argument('old_text'))}\n{_marked('+', step.argument('new_text'))}"
        return _block(main, "call", as_diff=True)
    if step.tool == "write" and step.argument("path"):
        main = f"{step.argument('path')}\n\n{step.argument('content')}"
    if not main:
        main = json.dumps(jsonable(step.args), ensure_ascii=False, indent=2) if step.args else ""
    rest = {k: v for k, v in step.args.items() if k != _MAIN.get(step.tool)} if isinstance(step.args, Mapping) else {}
    extra = f" # {json.dumps(jsonable(rest), ensure_ascii=False)}" if rest and step.tool in _MAIN else ""
    return _block(main + extra, "call") if main or extra else ""


def _answer(step: RecordedStep) -> str:
    if step.envelope is None:
        return '<p class="failure">The run was cut off before this was answered.</p>'
    text = with_mark(answer_text(step), step.envelope)
    return _block(
        text, "answer" if step.executed else "answer failure", as_diff=step.tool == "edit" or bool(_HUNK.search(text))
    )


def _changes(step: RecordedStep) -> str:
    """What the step has made of the files, where that was recorded."""
    if not step.changes:
        return ""
    return f'<p class="label">what it changed</p>{_block(readable_diff(step.changes), "changes", as_diff=True)}'


def _marked(sign: str, text: str) -> str:
    return "\n".join(f"{sign}{line}" for line in text.split("\n"))


def _block(text: str, kind: str, *, as_diff: bool = False) -> str:
    """A text, folded where it is long."""
    body = _diff(cut(text, MOST_CHARS)) if as_diff else _text(text)
    pre = f'<pre class="{kind}">{body}</pre>'
    lines = text.count("\n") + 1
    if lines <= OPEN_LINES and len(text) <= OPEN_CHARS:
        return pre
    return (
        f"<details><summary>{lines} lines, {len(text)} characters: {_text(text.strip(), 120)}</summary>{pre}</details>"
    )


def _diff(text: str) -> str:
    kinds = {"+": "add", "-": "del", "@": "at"}
    form = _odd_form(text)
    lines = []
    for line in text.split("\n"):
        kind, shown = kinds.get(line[:1]), escape_invisible(html.escape(line), form)
        lines.append(f'<span class="{kind}">{shown}</span>' if kind else shown)
    return "\n".join(lines)


def _text(text: str, most: int = MOST_CHARS) -> str:
    """``text`` for the page: escaped, and what cannot be seen made visible."""
    shown = html.escape(cut(text, most))
    return escape_invisible(shown, _odd_form(shown))


def _odd_form(text: str) -> str:
    """How what cannot be seen is shown in all of ``text``."""
    return '<span class="odd">{}</span>' if count_invisible(text) <= MOST_ODD else "{} "


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


@cache
def _file(name: str) -> str:
    return files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
