"""How long to wait before the next try: doubling, capped, and spread so that retries do not meet again."""

import random

JITTER = 0.2
"""Each wait is spread by up to this share to either side."""


def backoff_seconds(failures: int, *, base: float, cap: float) -> float:
    """The wait in seconds after so many failures in a row: base · 2^(failures-1), at most `cap`, spread (R4)."""
    exponent = min(failures - 1, 62)
    return float(min(cap, base * 2**exponent) * random.uniform(1 - JITTER, 1 + JITTER))


def longest_backoff_seconds(attempts: int, *, base: float, cap: float) -> float:
    """The longest time that so many failures in a row can wait in all."""
    return float(sum(min(cap, base * 2 ** min(n, 62)) * (1 + JITTER) for n in range(attempts)))
