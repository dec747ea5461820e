"""What an import of litellm leaves as it was."""

from __future__ import annotations

import gc
import sys

import pytest

from agent.model.brain import ModelError
from agent.model.litellm_import import load


@pytest.mark.parametrize("looks", [True, False])
def test_garbage_is_looked_for_afterwards_as_before(monkeypatch: pytest.MonkeyPatch, looks: bool) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)  # so that it cannot be imported
    try:
        (gc.enable if looks else gc.disable)()
        with pytest.raises(ModelError, match="litellm, which cannot be imported"):
            load()
        assert gc.isenabled() == looks
    finally:
        gc.enable()
