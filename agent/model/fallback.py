"""Several models in order: if one does not answer, the next one is asked."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Protocol

from agent.core.budget import current_meter
from agent.errors import AgentErrorCode

from .brain import ModelError

log = logging.getLogger(__name__)

# A model that failed is not asked again for this long: each step would wait for all of its attempts first.
REST_SECONDS = 300.0
# Another model can help after these. A prompt that is too long is shortened instead.
_HELPED = frozenset(
    {
        AgentErrorCode.model_unavailable,
        AgentErrorCode.model_rejected_request,
        AgentErrorCode.model_credentials_missing,
    }
)


class NamedModel(Protocol):
    """A brain that is checked before the run, and whose price may be known; as LiteLLMModel."""

    model: str

    def __call__(self, prompt: Any, /) -> Any:
        """Return the reply. Raises ModelError."""

    def check(self) -> None:
        """Raise ModelError if the model cannot be asked; calls nothing."""

    def is_priced(self) -> bool:
        """Return whether the price of the model is known."""


class FallbackModel:
    """Asks the first of ``models`` that answers. ``Response.model``, which the log keeps, says which one that was.

    A model that failed is passed over for ``rest_seconds``, unless all of them failed. Raises ValueError without a model, and
    the fault of the last one asked if none answers.
    """

    def __init__(self, models: Sequence[NamedModel], *, rest_seconds: float = REST_SECONDS) -> None:
        if not models:
            raise ValueError("A fallback needs at least one model.")
        self.models = tuple(models)
        self.rest_seconds = rest_seconds
        self._failed_at: dict[int, float] = {}

    @property
    def model(self) -> str:
        """Return the name of the model that is asked first."""
        return self.models[0].model

    def check(self) -> None:
        """Raise the ModelError of the first model that cannot be asked; calls nothing."""
        for model in self.models:
            model.check()

    def is_priced(self) -> bool:
        """Return whether the price of every model is known."""
        return all(model.is_priced() for model in self.models)

    def __call__(self, prompt: Any, /) -> Any:
        order = self._order()
        for place, number in enumerate(order):
            try:
                reply = self.models[number](prompt)
            except ModelError as error:
                if error.code not in _HELPED:
                    raise
                self._failed_at[number] = time.monotonic()
                if place == len(order) - 1:
                    raise
                following = self.models[order[place + 1]].model
                log.warning("%s failed (%s); asking %s", self.models[number].model, error.code.value, following)
                meter = current_meter()
                if meter is not None:
                    meter.check()
            else:
                self._failed_at.pop(number, None)
                return reply
        raise AssertionError("unreachable: the last model returned or raised")

    def _order(self) -> list[int]:
        """The models that did not fail lately, then the others, each in the order in which they were named."""
        now = time.monotonic()
        resting = [n for n, at in self._failed_at.items() if now - at < self.rest_seconds]
        return sorted(range(len(self.models)), key=lambda n: (n in resting, n))
