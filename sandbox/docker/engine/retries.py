"""The one policy for asking an engine again."""

from __future__ import annotations

import tenacity


def retry_engine(seconds: float, retry: tenacity.retry_base) -> tenacity.Retrying:
    """Return a policy that tries again for up to ``seconds`` and then raises the last error.

    It starts with 5 ms, since a removal that is under way takes 20, and ends at 0.5 s, to spare an engine in trouble.
    """
    return tenacity.Retrying(
        stop=tenacity.stop_after_delay(seconds),
        wait=tenacity.wait_exponential(multiplier=0.005, max=0.5),
        retry=retry,
        reraise=True,
    )
