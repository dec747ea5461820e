"""A memory that shows a summary in place of what was long ago."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from agent.model.brain import Brain

from .base import Memory, Message, last
from .condensation import Condensation
from .layered import LayeredMemory, layers
from .recall import RecallMemory
from .shapes import borders, tokens
from .shortening import original
from .summarising import SummaryError, summarise

log = logging.getLogger(__name__)

Numbered = tuple[int, Message]


class CondensingMemory(LayeredMemory):
    """A memory that keeps everything; when the shown messages exceed a threshold, the older ones are shown as a summary from
    then on.

    ``summariser`` is any brain; it is called within the run and billed to it. Without one, or if it fails or its summary is not
    shorter by ``min_shrink`` (a share), the oldest messages are no longer shown, and a note says so. ``threshold_tokens`` (an
    estimate) and ``threshold_messages`` bound what is shown; the first ``keep_first`` messages stay, and the last
    ``keep_last``, as far as they take at most three quarters of the threshold. The latest exchange is always shown, however
    long. After a condensation about ``keep_share`` of the threshold is shown, so that the beginning of the prompt stays the
    same, byte for byte, until the next one. ``prompt_tokens`` bounds the prompt of the summariser (default:
    ``threshold_tokens``).

    A call and its answers are never separated. Raises ValueError for invalid options.
    """

    wants_brain: ClassVar[bool] = True  # the catalogue gives the agent's own as ``summariser``

    def __init__(
        self,
        inner: Memory | None = None,
        *,
        summariser: Brain | None = None,
        threshold_tokens: int = 32_000,
        threshold_messages: int | None = None,
        keep_first: int = 1,
        keep_last: int = 10,
        keep_share: float = 0.5,
        min_shrink: float = 0.1,
        prompt_tokens: int | None = None,
    ) -> None:
        super().__init__(inner)
        if threshold_tokens < 500 or (threshold_messages is not None and threshold_messages < 4):
            raise ValueError("A condensing memory needs a threshold of at least 500 tokens and 4 messages.")
        if keep_first < 0 or keep_last < 0 or not 0 < keep_share < 1 or not 0 <= min_shrink < 1:
            raise ValueError(
                "keep_first and keep_last must not be negative; keep_share and min_shrink are shares of 1."
            )
        if prompt_tokens is not None and prompt_tokens < 1:
            raise ValueError(f"prompt_tokens must be at least 1, got {prompt_tokens}.")
        self.summariser = summariser
        self.threshold_tokens = threshold_tokens
        self.threshold_messages = threshold_messages
        self.keep_first = keep_first
        self.keep_last = keep_last
        self.keep_share = keep_share
        self.min_shrink = min_shrink
        self.prompt_tokens = prompt_tokens or threshold_tokens
        self.condensations: list[Condensation] = []
        self._sizes: list[int] = []

    def add_memory(self, memory: Mapping[str, Any]) -> None:
        """Add a message, then condense if necessary. Raises only what the base class raises."""
        super().add_memory(memory)
        self.condense()

    def get_memories(self, limit: int | None = None) -> list[Message]:
        """The first messages, the summary where there is one, and the rest; or the last ``limit`` of these."""
        return list(last([message for _, message in self._view()], limit))

    def snapshot(self) -> Any:
        """The latest condensation, which is all that counts for what is shown, and the state of what is below."""
        own, below = self.condensations[-1:], super().snapshot()
        return {"condensed": own[0].to_dict() if own else None, "below": below} if own or below else None

    def restore(self, state: Any) -> None:
        """See the base class; nothing is condensed again."""
        if state is None:
            return
        if not isinstance(state, Mapping) or set(state) != {"condensed", "below"}:
            raise ValueError(f"This is no state of a condensing memory: {state!r:.200}")
        made = [] if state["condensed"] is None else [Condensation.from_dict(state["condensed"])]
        if any(c.last > len(self.items) for c in made):
            raise ValueError(f"A condensation tells of messages that are not among the {len(self.items)}.")
        super().restore(state["below"])
        self.condensations = made

    @property
    def shown_tokens(self) -> int:
        """About how many tokens of what is shown."""
        return sum(self._size(number, message) for number, message in self._view())

    def condense(self) -> None:
        """Show less, if more is shown than the threshold allows and that is possible. A second call changes nothing."""
        shown, view = self._numbered(), self._view()
        if self._within(view, 1.0):
            return
        head = self._head(shown)
        covered = self.condensations[-1].last if self.condensations else 0
        rest = [pair for pair in shown[len(head) :] if pair[0] > covered]
        at = self._cut(head, rest)
        if at:
            made = self._replaced(head, rest[:at])
            if made is not None:
                self.condensations.append(made)

    # --- what is shown ------------------------------------------------------------------
    def _numbered(self) -> list[Numbered]:
        """What ``inner`` shows, with the numbers of the messages; 0 for what is none of ours."""
        shown = self.inner.get_memories()
        if len(shown) == len(self.items):
            return list(enumerate(shown, 1))
        numbers = {id(message): number for number, message in enumerate(self.items, 1)}
        return [(numbers.get(id(original(message)), 0), message) for message in shown]

    def _view(self) -> list[Numbered]:
        shown = self._numbered()
        if not self.condensations:
            return shown
        c = self.condensations[-1]
        before = [pair for pair in shown if pair[0] < c.first]
        return [*before, (0, self._message(c)), *(pair for pair in shown if pair[0] > c.last)]

    def _message(self, condensation: Condensation) -> Message:
        return condensation.message(any(isinstance(layer, RecallMemory) for layer in layers(self)))

    def _size(self, number: int, message: Message) -> int:
        """The tokens of a message, counted once."""
        if number == 0 or message is not self.items[number - 1]:
            return tokens(message)  # a summary, or one that is shown shorter
        while len(self._sizes) < number:
            self._sizes.append(tokens(self.items[len(self._sizes)]))
        return self._sizes[number - 1]

    def _tokens(self, messages: Iterable[Numbered]) -> int:
        return sum(self._size(*pair) for pair in messages)

    def _within(self, messages: Sequence[Numbered], share: float, further: int = 0) -> bool:
        """Whether ``messages`` and ``further`` tokens in one more take at most ``share`` of the threshold."""
        count = len(messages) + (1 if further else 0)
        if self.threshold_messages is not None and count > self.threshold_messages * share:
            return False
        return self._tokens(messages) + further <= self.threshold_tokens * share

    # --- what is replaced ------------------------------------------------------------------
    def _head(self, shown: Sequence[Numbered]) -> list[Numbered]:
        """The first messages, with the answers that belong to them; what was shown before a summary stays so."""
        if self.condensations:
            return [pair for pair in shown if pair[0] < self.condensations[-1].first]
        end = min(self.keep_first, len(shown))
        while 0 < end < len(shown) and shown[end][1]["role"] == "tool":
            end += 1
        return list(shown[:end])

    def _cut(self, head: list[Numbered], rest: Sequence[Numbered]) -> int:
        """How many messages of ``rest`` to replace: as few as leave room for many turns; 0 where nothing can be replaced."""
        allowed = [i for i in borders([message for _, message in rest]) if i]
        if not allowed:
            return 0

        def fits(i: int, share: float) -> bool:
            return self._within([*head, *rest[i:]], share, self._summary_tokens)

        at = bisect.bisect_left(allowed, True, key=lambda i: fits(i, self.keep_share))
        found = allowed[min(at, len(allowed) - 1)]
        polite = [i for i in allowed if i <= len(rest) - self.keep_last]
        # Anything less than a good step would be taken again at the next turn, and no two prompts would begin alike.
        step = (1 + self.keep_share) / 2
        return polite[-1] if polite and polite[-1] < found and fits(polite[-1], step) else found

    @property
    def _summary_tokens(self) -> int:
        return self.threshold_tokens // 8

    def _replaced(self, head: Sequence[Numbered], gone: Sequence[Numbered]) -> Condensation | None:
        """The condensation of ``gone`` and of what was condensed before; None where nothing would be won by it."""
        earlier = self.condensations[-1] if self.condensations else None
        first = earlier.first if earlier else (head[-1][0] + 1 if head else 1)
        summary, told, failure = (earlier.summary, earlier.told, "") if earlier else ("", 0, "")
        size = self._tokens(gone) + (tokens(self._message(earlier)) if earlier else 0)
        # What was dropped unread before is read now.
        unread = [(n, self.items[n - 1]) for n in range(max(told + 1, first), gone[-1][0] + 1)]
        try:
            made = Condensation(first=first, last=gone[-1][0], summary=self._ask(summary, unread), told=gone[-1][0])
            if tokens(self._message(made)) <= (1 - self.min_shrink) * size:
                return made
            failure = "the summary was not shorter than what it was to replace"
        except SummaryError as error:
            failure = str(error)
        log.warning("messages %d to %d are dropped from what is shown: %s", first, gone[-1][0], failure)
        dropped = Condensation(first=first, last=gone[-1][0], summary=summary, told=told, failure=failure)
        return dropped if tokens(self._message(dropped)) < size else None

    def _ask(self, summary: str, gone: Sequence[Numbered]) -> str:
        if self.summariser is None:
            raise SummaryError("there is no summariser")
        return summarise(
            self.summariser, summary, gone, prompt_tokens=self.prompt_tokens, summary_tokens=self._summary_tokens
        )
