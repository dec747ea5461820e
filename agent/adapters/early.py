"""Agents of the early contract: ``step(cmd_mgr) -> Event``, ``add_event(event)``, ``search_memory(query) -> list[str]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agent.hub.spec import AgentSpec

from .actions import Action, CmdKillAction, CmdRunAction, MessageAction
from .background import BackgroundCommand
from .early_events import Event, action_of, event_of
from .finding import kit_of
from .kit import OldAgentKit, made
from .observations import Observation
from .translating import invocation_of, observation_of

if TYPE_CHECKING:
    from agent.hub.setting import Setting


class CommandManager:
    """What ``step`` is given: the commands in the background, and a way to run one past the loop (in the same sandbox)."""

    def __init__(self, kit: EarlyKit) -> None:
        self._kit = kit

    @property
    def background_commands(self) -> dict[int, BackgroundCommand]:
        """Those that have not ended, by number."""
        return {number: each for number, each in self._kit.background.commands.items() if not each.ended}

    def run_command(self, command: str, background: bool = False) -> Event:
        """Run a command; the event with its output."""
        return self._now(CmdRunAction(command, background))

    def kill_command(self, id: int) -> Event:  # noqa: A002 - the old name
        """End a command in the background."""
        return self._now(CmdKillAction(id))

    def get_background_events(self) -> list[Event]:
        """What commands in the background printed since the last event that told of it."""
        return [event for news in self._kit.background.news() if (event := event_of(news)) is not None]

    def _now(self, action: Action) -> Event:
        call = invocation_of(action, self._kit.background)
        envelope = self._kit.environment.execute(call["tool"], call["args"]).to_dict()
        observation = observation_of(action, envelope, self._kit.background, self._kit.browser)
        return event_of(observation) or Event("output", {"output": ""})


class EarlyKit(OldAgentKit):
    """The agent is told every event by ``add_event``: what the user says (``message``), what it did itself, and what came of it.

    ``make`` is asked with the task. The events are kept for a run that is resumed: a new agent is told all of them again.
    """

    name = "early"

    def __init__(self, setting: Setting, *, make: Callable[..., Any]) -> None:
        self.events: list[Event] = []
        super().__init__(setting, make=make)

    def _anew(self) -> None:
        super()._anew()
        self.events = []
        self._decided: Any = None

    def begin(self, task: str) -> None:
        """See the base class."""
        self.agent = made(self.make, task, self.llm)
        self.root_task.goal = task
        for event in self.events:
            self.agent.add_event(event)

    def decide(self) -> Action:
        """See the base class."""
        self._decided = event = self.agent.step(CommandManager(self))
        return action_of(event)

    def happened(self, action: Action, observation: Observation) -> None:
        """See the base class."""
        if action.source == "user" and isinstance(action, MessageAction):
            self._tell(Event("message", {"message": action.content}))
            return
        if self._decided is not None:
            decided, self._decided = self._decided, None
            self._tell(Event.from_dict(decided) if isinstance(decided, dict) and "action" in decided else decided)
        follows = event_of(observation)
        if follows is not None:
            self._tell(follows)

    def _tell(self, event: Any) -> None:
        if isinstance(event, Event):
            self.events.append(event)
        elif hasattr(event, "action"):
            self.events.append(Event(str(event.action), dict(getattr(event, "args", None) or {})))
        else:
            return  # no event: the error that follows says so
        self.agent.add_event(event)

    def snapshot(self) -> Any:
        """See the base class."""
        return {"events": [event.to_dict() for event in self.events], "heard": self.heard, **self.tools()}

    def restore(self, state: Any) -> None:
        """See the base class."""
        try:
            self.events = [Event.from_dict(each) for each in state["events"]]
            self.take_tools(state)
            self.heard = int(state["heard"])
        except Exception as error:
            raise ValueError(f"This is no state of an agent of the early contract: {error!r}") from error


def early_spec(name: str, make: Callable[..., Any], description: str = "An agent of the early contract.") -> AgentSpec:
    """The spec of the agents that ``make`` answers: their class, or a function. Build it as any other, with ``hub.build``.

    ``make`` is called with the task if it needs an argument. The setting's brain is the agent's model, ``agent.llm``.
    """
    return AgentSpec(
        name=name,
        description=description,
        actions=("early",),
        kit_options={"early": {"make": make}},
        brain=lambda setting: kit_of(setting, EarlyKit).__call__,
    )
