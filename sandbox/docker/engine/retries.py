"""The one policy for asking an engine again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tenacity


def retry_engine(seconds: float, may_pass: Callable[[BaseException], bool]) -> tenacity.Retrying:
    """Return a policy that tries again after an error that ``may_pass``, for up to ``seconds``, and then raises the last one.

    It starts with 5 ms, since a removal that is under way takes 20, and ends at 0.5 s, to spare an engine in trouble.
    """
    import tenacity  # 3 ms, for what a start rarely needs

    return tenacity.Retrying(
        stop=tenacity.stop_after_delay(seconds),
        wait=tenacity.wait_exponential(multiplier=0.005, max=0.5),
        retry=tenacity.retry_if_exception(may_pass),
        reraise=True,
    )
