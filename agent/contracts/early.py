"""Agents of the early contract, ``step(cmd_mgr) -> Event``, and its events: a name and a dict, for actions and results alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent.hub.spec import AgentSpec
from sandbox.envelope import jsonable

from . import actions as act
from . import observations as obs
from .actions import Action, CmdKillAction, CmdRunAction, MessageAction
from .background import BackgroundCommand
from .kit import OldAgentKit, create_agent, kit_of
from .observations import Observation
from .reading import MalformedActionError, action_from_dict
from .translating import invocation_of, observation_of

if TYPE_CHECKING:
    from agent.hub.hub import Setting

RUNNABLE = frozenset({"run", "kill", "browse", "read", "write", "recall"})


@dataclass
class Event:
    """An action (read, write, run, kill, browse, recall, think, finish), a result (output, error) or a message of the
    user.
    """

    action: str
    args: dict[str, Any] = field(default_factory=dict)
    message: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON-ready data."""
        return {"action": self.action, "args": jsonable(self.args)}

    def is_runnable(self) -> bool:
        """Return whether an event with its output follows."""
        return self.action in RUNNABLE

    @classmethod
    def from_dict(cls, data: Any) -> Event:
        """Read an event from data. Raises MalformedActionError."""
        args = data.get("args") if isinstance(data, Mapping) else None
        if (
            not isinstance(data, Mapping)
            or not isinstance(data.get("action"), str)
            or not isinstance(args, Mapping | None)
        ):
            raise MalformedActionError(f"This is not an event: {data!r:.200}.")
        return cls(data["action"], dict(args or {}))


def action_of(event: Any) -> act.Action:
    """Return the late contract's action that an event of ``step`` asks for. Raises MalformedActionError."""
    name, args = _parts(event)
    if name == "finish":
        return act.AgentFinishAction(outputs={str(k): v for k, v in jsonable(args).items()})
    return action_from_dict({"action": name, "args": args})


def _parts(event: Any) -> tuple[Any, Any]:
    if isinstance(event, Mapping):
        if "action" not in event:
            raise MalformedActionError(f"'action' is missing in {event!r:.200}.")
        return event["action"], event.get("args") or {}
    if not hasattr(event, "action"):
        raise MalformedActionError(f"step returned {event!r:.200}, which is not an event.")
    return event.action, getattr(event, "args", None) or {}


def event_of(observation: obs.Observation) -> Event | None:
    """Return the event for an observation; None for one that says nothing."""
    match observation:
        case obs.ErrorObservation() | obs.BrowserOutputObservation(status_code=0):
            return Event("error", {"error": observation.content})
        case obs.NullObservation():
            return None
        case obs.CmdOutputObservation():
            fields = {"exit_code": observation.exit_code, "command": observation.command}
            if observation.command_id >= 0:
                fields["command_id"] = observation.command_id
            return Event("output", {"output": observation.content, **fields})
        case obs.AgentRecallObservation():
            return Event("output", {"output": "\n".join(observation.memories), "memories": observation.memories})
    return Event("output", {"output": observation.content, **observation.body(observation.fields())["extras"]})


class CommandManager:
    """The argument of ``step``: the commands in the background, and a way to run one in the same sandbox past the
    loop.
    """

    def __init__(self, kit: EarlyKit) -> None:
        self._kit = kit

    @property
    def background_commands(self) -> dict[int, BackgroundCommand]:
        """The running ones, by number."""
        return {number: each for number, each in self._kit.background.commands.items() if not each.ended}

    def run_command(self, command: str, background: bool = False) -> Event:
        """Run a command, and return the event with its output."""
        return self._now(CmdRunAction(command, background))

    def kill_command(self, id: int) -> Event:  # noqa: A002 - the old name
        """End a command in the background."""
        return self._now(CmdKillAction(id))

    def get_background_events(self) -> list[Event]:
        """Return events with the output of commands in the background since the last such event."""
        return [event for news in self._kit.background.news() if (event := event_of(news)) is not None]

    def _now(self, action: Action) -> Event:
        call = invocation_of(action, self._kit.background)
        envelope = self._kit.environment.execute(call["tool"], call["args"]).to_dict()
        observation = observation_of(action, envelope, self._kit.background, self._kit.browser)
        return event_of(observation) or Event("output", {"output": ""})


class EarlyKit(OldAgentKit):
    """Pass every event to the agent's ``add_event``: messages of the user (``message``), its own actions and their
    results.

    ``make`` is called with the task. Events are saved for a resumed run, in which a new agent gets all of them again.
    """

    name = "early"

    def __init__(self, setting: Setting, *, make: Callable[..., Any]) -> None:
        self.events: list[Event] = []
        super().__init__(setting, make=make)

    def _reset(self) -> None:
        super()._reset()
        self.events = []
        self._decided: Any = None

    def begin(self, task: str) -> None:
        self.agent = create_agent(self.make, task, self.llm)
        self.root_task.goal = task
        for event in self.events:
            self.agent.add_event(event)

    def decide(self) -> Action:
        self._decided = event = self.agent.step(CommandManager(self))
        return action_of(event)

    def report(self, action: Action, observation: Observation) -> None:
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
        return {"events": [event.to_dict() for event in self.events], "heard": self.heard, **self.tools()}

    def restore(self, state: Any) -> None:
        try:
            self.events = [Event.from_dict(each) for each in state["events"]]
            self.restore_tools(state)
            self.heard = int(state["heard"])
        except Exception as error:
            raise ValueError(f"This is not the state of an agent of the early contract: {error!r}") from error


def early_spec(name: str, make: Callable[..., Any], description: str = "An agent of the early contract.") -> AgentSpec:
    """Return a spec for agents that ``make``, a class or function, creates. Build it like any other, with
    ``hub.build``.

    ``make`` is called with the task if it needs an argument. The setting's brain is the agent's model, ``agent.llm``.
    """
    return AgentSpec(
        name=name,
        description=description,
        actions=("early",),
        kit_options={"early": {"make": make}},
        brain=lambda setting: kit_of(setting, EarlyKit).__call__,
    )
