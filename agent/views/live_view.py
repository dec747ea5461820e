"""The live view of a run: each step as it happens, on standard error, with colours on a terminal and plain lines elsewhere.

On a terminal the last lines show what is going on at the moment: the reply as the model writes it, or the output of a command,
and below it how long that has taken, the step, and the cost so far.
"""

from __future__ import annotations

from dataclasses import replace

from agent.core.budget import current_meter
from agent.core.envelopes import text_of
from agent.core.loop.hooks import Hooks, Step
from agent.core.loop.layers import Flow
from agent.core.loop.turns import Ask
from agent.core.registry import ActionRegistry
from agent.core.run import AgentRun
from agent.memory import Memory
from agent.model.brain import Delta, OnDelta, delta_listener, receiving_deltas
from agent.record.call_summary import summarize_args
from sandbox.cli.status_line import REPLY, terminal
from sandbox.text.invisible import visible

from .screen import Screen
from .step_printer import LIVE, StepPrinter
from .step_view import CallView, StepView, view_of_answer


class LiveView(Hooks):
    """Shows what the agent thinks, does and gets back, each step with the ``name`` of its agent if there is one.

    ``can_pause`` says what Ctrl-C does: it pauses a recorded run, and stops any other.
    """

    def __init__(self, screen: Screen, registry: ActionRegistry, name: str = "", *, can_pause: bool = True) -> None:
        self.registry, self.name = registry, name
        self._ctrl_c = "Ctrl-C pauses" if can_pause else "Ctrl-C stops"
        self._printer = StepPrinter(screen, LIVE)
        self._behind = 0
        self._step = 0

    def on_resume(self, behind: int) -> None:
        self._behind = behind

    def on_step_start(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        self._step = self._behind + step.number
        terminal().show("thinking", facts=self._facts(), with_output=True, prose=True)

    def around_ask(self, ask: Ask) -> Flow:
        """Show the reply as it is written, if this is a terminal; else no model is asked to stream."""
        if not terminal().live:
            return (yield ask)
        return (yield replace(ask, within=(*ask.within, lambda: receiving_deltas(_also(self._show_delta)))))

    def on_action(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        terminal().hide()
        if step.index == 0:
            self._printer.heading(StepView(f"{self.name} {self._step}".strip(), step.thought))
        if step.tool is not None:
            self._printer.call(CallView(step.tool, self._summary(step)))
            terminal().show(visible(step.tool, one_line=True), facts=self._facts(), with_output=True)

    def on_result(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        terminal().hide()
        envelope = step.envelope or {}
        action = self.registry.get_action(step.tool)
        if action is not None and action.terminal and envelope.get("tool_executed") is True:
            return  # the result of the run is printed at its end
        if len(step.calls) > 1:
            self._printer.note(f"{step.tool}:", "dim")
        text = action.show(envelope) if action is not None else text_of(envelope)
        self._printer.answer(view_of_answer(step.tool, "", text, envelope))

    def on_terminate(self, run: AgentRun) -> None:  # noqa: ARG002
        terminal().hide()

    def _summary(self, step: Step) -> str:
        action = self.registry.get_action(step.tool)
        return summarize_args(step.args, None if action is None else action.parameters)

    def _facts(self) -> str:
        """Return the step, its limit, and the cost of the whole run and its subruns, for the status line."""
        meter = whole = current_meter()
        limit = "" if meter is None else f"/{meter.budget.max_iterations}"
        while whole is not None and whole.above is not None:
            whole = whole.above
        cost = f"${whole.usage.cost_usd:.2f}" if whole is not None and whole.usage.cost_usd else ""
        return " · ".join(fact for fact in (f"step {self._step}{limit}", cost, self._ctrl_c) if fact)

    def _show_delta(self, delta: Delta) -> None:
        status = terminal()
        if delta.kind == "start":
            status.clear_output()
        elif delta.kind == "tool_call" and delta.name:
            status.add_output(REPLY, f"\n→ {delta.name} {delta.text}")
        else:
            status.add_output(REPLY, delta.text)


def _also(listener: OnDelta) -> OnDelta:
    """Return a listener that passes each piece on to the one around it, too."""
    outer = delta_listener()

    def both(delta: Delta) -> None:
        listener(delta)
        if outer is not None:
            outer(delta)

    return both
