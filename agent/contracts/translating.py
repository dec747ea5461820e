"""Translate an old action into a call of one of our tools, and its envelope into an old observation. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agent.core.envelopes import text_of

from . import actions as act
from . import observations as obs
from .background import Background
from .browser import Browser

_GOTO = re.compile(r"""\s*goto\(\s*(["'])(?P<url>[^"'\s]{1,8000})\1\s*\)\s*""")
# Old observations have no place for notices; these would stand under every command.
_QUIET = frozenset({"files_changed"})


def invocation_of(action: act.Action, background: Background) -> dict[str, Any]:
    """Return the call that carries out ``action``, with its thought."""
    tool, args = _call_of(action, background)
    thought = str(getattr(action, "thought", ""))
    return {"thought": thought, "tool": tool, "args": args}


def _call_of(action: act.Action, background: Background) -> tuple[str, dict[str, Any]]:
    match action:
        case act.CmdRunAction():
            return "run", {"command": action.command, **({"background": True} if action.background else {})}
        case act.CmdKillAction():
            return "kill", {"id": background.id_of(action.command_id)}
        case act.FileReadAction():
            return "read", {"path": action.path, **_range(action.start, action.end)}
        case act.FileWriteAction(start=0, end=-1):
            return "write", {"path": action.path, "content": action.content}
        case act.FileWriteAction():
            return "write_lines", {
                "path": action.path,
                "content": action.content,
                "start": action.start,
                "end": action.end,
            }
        case act.BrowseInteractiveAction() if goto := _GOTO.fullmatch(action.browser_actions):
            return "browse", {"url": goto["url"]}
    args = action.fields()
    args.pop("thought", None)
    return ("wait", {}) if action.type == "null" else (action.type, args)


def _range(start: int, end: int) -> dict[str, int]:
    lines = {"start_line": start + 1} if start > 0 or end >= 0 else {}
    return {**lines, "end_line": max(end, start + 1)} if end >= 0 else lines


def observation_of(
    action: act.Action, envelope: Mapping[str, Any], background: Background, browser: Browser
) -> obs.Observation:
    """Return the observation that answers ``action``.

    A failure is an error observation with the hint. A command or cell that was stopped keeps its output, and a page
    that did not come is a page with an error.
    """
    result = envelope.get("result")
    match action, result:
        case act.CmdRunAction(), Mapping() if "output" in result:
            return _of_command(action, envelope, result, background)
        case act.IPythonRunCellAction(), Mapping() if "output" in result:
            return obs.IPythonRunCellObservation(_with_failure(str(result["output"]), envelope), action.code)
        case act.BrowseURLAction() | act.BrowseInteractiveAction(), _:
            return _of_page(action, envelope, browser)
    if envelope.get("tool_executed") is not True:
        return obs.ErrorObservation(text_of(envelope))
    fields: Mapping[str, Any] = result if isinstance(result, Mapping) else {}
    match action:
        case act.CmdKillAction():
            text = f"Background command {action.command_id} was killed."
            return obs.CmdOutputObservation(text, action.command_id, background.command_of(action.command_id))
        case act.FileReadAction():
            content = f"[{action.path} is binary, {fields.get('size_bytes')} bytes]" if fields.get("binary") else None
            return obs.FileReadObservation(content or str(fields.get("content", "")), action.path)
        case act.FileWriteAction():
            return obs.FileWriteObservation("", action.path)
        case act.AgentRecallAction():
            return obs.AgentRecallObservation("", [str(each) for each in result or ()])
        case act.AgentDelegateAction():
            return obs.AgentDelegateObservation("", dict(fields.get("outputs") or {}))
    return obs.NullObservation("")


def _of_command(
    action: act.CmdRunAction, envelope: Mapping[str, Any], result: Mapping[str, Any], background: Background
) -> obs.Observation:
    if envelope.get("tool_executed") is True and result.get("running"):
        started = background.started(str(result.get("id")), action.command)
        text = f"Background command started. To stop it, send a kill action with id {started.id}."
        return obs.CmdOutputObservation(text, started.id, action.command)
    code = result.get("exit_code")
    content = _with_failure(str(result["output"]), envelope)
    return obs.CmdOutputObservation(content, -1, action.command, code if isinstance(code, int) else -1)


def _with_failure(output: str, envelope: Mapping[str, Any]) -> str:
    """Return the output, followed by what the envelope adds to it."""
    lines = [output]
    if envelope.get("tool_executed") is not True:
        lines.append(f"{envelope.get('error')} {envelope.get('hint', '')}".strip())
    lines += [
        f"{n['message']} {n.get('hint', '')}".strip()
        for n in envelope.get("notices", ())
        if n.get("code") not in _QUIET
    ]
    return "\n".join(line.rstrip("\n") for line in lines if line) if len(lines) > 1 else output


def _of_page(
    action: act.BrowseURLAction | act.BrowseInteractiveAction, envelope: Mapping[str, Any], browser: Browser
) -> obs.Observation:
    """Return the current page. A page that came by the operation itself is put into the tab first."""
    if isinstance(action, act.BrowseURLAction):
        done, url = f"goto({action.url!r})", action.url
    else:
        done, url = action.browser_actions, browser.tab.url
    result = envelope.get("result")
    if envelope.get("tool_executed") is not True or not isinstance(result, Mapping):
        return obs.BrowserOutputObservation(
            text_of(envelope), url, status_code=0, error=True, last_browser_action=done, **browser.tab_fields()
        )
    if "tree" not in result:
        browser.tab.visit(str(result.get("url")))
        result = browser.page_fields(result)
    return obs.BrowserOutputObservation(
        result["text"],
        result["url"],
        status_code=result["status"],
        error=result["status"] >= 400,
        open_pages_urls=result["open_pages_urls"],
        active_page_index=result["active_page_index"],
        axtree_object=result["tree"],
        last_browser_action=done,
    )
