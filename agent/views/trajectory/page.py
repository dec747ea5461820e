"""A run as one HTML page: it loads nothing, has a light and a dark form, and nothing that a run says becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup, escape

from agent.record.store import CallRecord, RunRecord, StepRecord
from agent.record.subruns import subruns_by_step
from agent.views.step_view import CallView, exit_code, has_diff, result_text, view_of_call
from sandbox.envelope import jsonable
from sandbox.frozen import dataclass
from sandbox.text.excerpt import without_middle
from sandbox.text.invisible import count_invisible, escape_invisible

from .page_limits import MOST_CHARS, bounded

# What has more lines or characters is folded.
OPEN_LINES = 20
OPEN_CHARS = 4000
# Invisible characters of a text that are marked one by one; marking more would take a browser a minute.
MOST_ODD = 2000
_KINDS = {"+": "add", "-": "del", "@": "at"}
# The argument that stands for the whole call, by tool; of other tools all are shown as JSON.
_MAIN = {"run": "command", "ipython": "code", "think": "thought"}


def page(run: RunRecord) -> str:
    """Return the page. Its policy lets the browser run only the page's own script, known by its hash, and load nothing."""
    run = bounded(run)
    css, js = _file("page.css"), _file("page.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(js)}'; base-uri 'none'; form-action 'none'"
    )
    # The two files are ours, and the only texts that are not escaped.
    own = {"css": Markup(css), "js": Markup(js)}  # noqa: S704
    title = f"{run.agent or 'run'} {run.run}".strip()
    return str(_template().render(run=PageRun(run, ""), title=title, policy=policy, **own)) + "\n"


@dataclass(frozen=True, slots=True)
class Block:
    """A text in its own box: folded if it is long. ``lines`` are escaped, each with the class it has in a diff."""

    kind: str
    text: str
    as_diff: bool = False

    @property
    def lines(self) -> list[tuple[str, Markup]]:
        """The lines of a diff, or all of another text as one."""
        text = shorter(self.text)
        form = _odd_form(text)
        if not self.as_diff:
            return [("", _seen(text, form))]
        parts = text.split("\n")
        return [(kind, _seen(part, form)) for kind, part in zip(_kinds(parts), parts, strict=True)]

    @property
    def open(self) -> bool:
        """Whether it is short enough to be shown at once."""
        return self.text.count("\n") < OPEN_LINES and len(self.text) <= OPEN_CHARS

    @property
    def size(self) -> str:
        """How long it is."""
        return f"{self.text.count(chr(10)) + 1} lines, {len(self.text)} characters"

    @property
    def beginning(self) -> str:
        """What a folded text begins with."""
        return self.text[: OPEN_CHARS * 2].strip()


@dataclass(frozen=True, slots=True)
class PageCall:
    """A call: the blocks ``before`` the subruns that it began, and ``after`` them; each diff is in only one of them."""

    label: str
    unanswered: bool
    before: list[Block]
    after: list[Block]
    changes: list[Block]


@dataclass(frozen=True, slots=True)
class PageStep:
    """A step as the template shows it."""

    number: str
    tool: str
    spent: str
    thought: str
    failed: bool
    calls: list[PageCall]
    subruns: list[PageRun]


@dataclass(frozen=True, slots=True)
class PageRun:
    """A run as the template shows it; ``prefix`` stands before the numbers of a subrun's steps."""

    record: RunRecord
    prefix: str

    @property
    def task(self) -> str:
        """The task."""
        return self.record.task

    @property
    def agent(self) -> str:
        """The name of the agent."""
        return self.record.agent

    @property
    def status(self) -> str:
        """How it ended."""
        return self.record.status or "not ended"

    @property
    def reason(self) -> str:
        """Why it ended."""
        return self.record.reason

    @property
    def result(self) -> str:
        """Its result as text."""
        return result_text(self.record.result)

    def facts(self) -> list[tuple[str, str]]:
        """Return what is known of the run, by name."""
        run, usage, cost = self.record, self.record.usage, self.record.cost_usd
        facts = {
            "agent": run.agent,
            "model": run.model,
            "run": run.run,
            "began": run.began,
            "status": self.status,
            "steps": str(len(run.steps)),
            "time": _seconds(run.seconds),
            "tokens": f"{usage.input_tokens} + {usage.output_tokens}" if usage.calls else "",
            "cost": "" if not usage.calls else "unknown" if cost is None else f"${cost:.4f}",
        }
        return [(name, value) for name, value in facts.items() if value]

    def steps(self) -> Iterator[PageStep]:
        """Yield the steps, each with the subruns that it began."""
        subruns = subruns_by_step(self.record)
        for step in self.record.steps:
            number = f"{self.prefix}{step.number}"
            yield _page_step(step, number, [PageRun(each, f"{number}.") for each in subruns.get(step.number, ())])

    def other_subruns(self) -> list[PageRun]:
        """Return the subruns of which it is not known which step began them."""
        others = subruns_by_step(self.record).get(None, ())
        return [PageRun(each, f"{self.prefix}part{number}.") for number, each in enumerate(others, 1)]


def _page_step(step: StepRecord, number: str, subruns: list[PageRun]) -> PageStep:
    count = len(step.calls)
    labels = [f"call {n} of {count}: {call.tool}" if count > 1 else "" for n, call in enumerate(step.calls, 1)]
    calls = [_page_call(call, label) for call, label in zip(step.calls, labels, strict=True)]
    failed = not all(call.succeeded and not exit_code(call) for call in step.calls)
    tools = ", ".join(dict.fromkeys(call.tool or "no action" for call in step.calls))
    return PageStep(number, tools, _spent(step), step.thought, failed, calls, subruns)


def _page_call(call: CallRecord, label: str) -> PageCall:
    view = view_of_call(call)
    after = []
    if view.answer:
        after.append(Block("answer failure" if view.failed else "answer", view.answer, has_diff(view.answer)))
    changed = "\n".join(part for part in (view.diff, *(f"[not in this diff: {each}]" for each in view.missing)) if part)
    changes = [Block("changes", changed, as_diff=True)] if changed else []
    return PageCall(label, call.envelope is None, _call_blocks(call, view), after, changes)


def _call_blocks(call: CallRecord, view: CallView) -> list[Block]:
    """Return the arguments, without those that are in the diff of what the call changed."""
    if call.tool is None:
        return []
    path = call.argument("path")
    if call.tool == "edit" and path:
        if view.diff:
            return [Block("call", path)]
        old, new = _marked("-", call.argument("old_text")), _marked("+", call.argument("new_text"))
        return [Block("call", f"--- {path}\n+++ {path}\n{old}\n{new}", as_diff=True)]
    if call.tool == "write" and path:
        return [Block("call", path if view.diff else f"{path}\n\n{call.argument('content')}")]
    main = call.argument(_MAIN.get(call.tool, ""))
    if not main:
        main = json.dumps(jsonable(call.args), ensure_ascii=False, indent=2) if call.args else ""
    rest = {k: v for k, v in call.args.items() if k != _MAIN.get(call.tool)} if isinstance(call.args, Mapping) else {}
    extra = f" # {json.dumps(jsonable(rest), ensure_ascii=False)}" if rest and call.tool in _MAIN else ""
    return [Block("call", main + extra)] if main or extra else []


def _kinds(lines: list[str]) -> Iterator[str]:
    """Yield the class of each line of a diff; the two lines that name the file are neither added nor deleted."""
    for before, line, after in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        names_file = (line.startswith("--- ") and after.startswith("+++ ")) or (
            line.startswith("+++ ") and before.startswith("--- ")
        )
        yield "at" if names_file else _KINDS.get(line[:1], "")


def _spent(step: StepRecord) -> str:
    parts = [_seconds(step.seconds)]
    if step.usage_known and step.usage.calls:
        parts += [f"{step.usage.input_tokens} + {step.usage.output_tokens} tokens", step.usage.cost_text]
    return ", ".join(parts)


def _marked(sign: str, text: str) -> str:
    return "\n".join(f"{sign}{line}" for line in text.split("\n"))


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def shorter(text: str, chars: int = MOST_CHARS) -> str:
    """Return ``text`` without its middle if it is longer than a page shows."""
    return without_middle(text, chars)


def seen(text: str, chars: int = MOST_CHARS) -> Markup:
    """Return ``text`` for the page: escaped, and what is invisible made visible."""
    text = shorter(text, chars)
    return _seen(text, _odd_form(text))


def _seen(text: str, form: str) -> Markup:
    return Markup(escape_invisible(str(escape(text)), form))  # noqa: S704 - it was escaped


def _odd_form(text: str) -> str:
    """Return how invisible characters are shown in all of ``text``."""
    return '<span class="odd">{}</span>' if count_invisible(text) <= MOST_ODD else "{} "


@cache
def _template() -> Any:
    environment = Environment(loader=FunctionLoader(_file), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["seen"] = seen
    return environment.get_template("page.html")


@cache
def _file(name: str) -> str:
    return files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
