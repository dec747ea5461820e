"""What a run used, in one line."""

from __future__ import annotations

from agent import Usage
from agent.views.usage_text import spent


def test_tokens_from_the_cache_are_a_part_of_the_input() -> None:
    used = Usage(calls=2, failed_calls=1, input_tokens=900, output_tokens=40, cached_tokens=700, cost_usd=0.01)
    assert spent(used, 3.0) == "3.0 s, 2 model calls (1 failed), 900 (700 from the cache) + 40 tokens, $0.0100"
    assert spent(Usage(calls=1, input_tokens=9, output_tokens=4), 1.0) == "1.0 s, 1 model call, 9 + 4 tokens, $0.0000"


def test_usage_adds_up_in_all_its_fields() -> None:
    one = Usage(calls=1, input_tokens=2, cached_tokens=3, cache_write_tokens=4, reasoning_tokens=5, estimated_tokens=6)
    both = one + one
    assert (both.calls, both.cached_tokens, both.cache_write_tokens, both.reasoning_tokens) == (2, 6, 8, 10)
    assert both.total_tokens == 2 * (2 + 6)
