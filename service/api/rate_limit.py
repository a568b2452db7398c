"""How many requests a key may make: a bucket for each, in this process, filled at a steady rate."""

from dataclasses import dataclass
from math import ceil

from service.domain.errors import TooManyRequests

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """After a request was taken: how many more at once, and when the bucket is full again."""

    limit: int
    remaining: int
    reset_s: float

    def headers(self) -> dict[str, str]:
        return {
            "x-ratelimit-limit-requests": str(self.limit),
            "x-ratelimit-remaining-requests": str(self.remaining),
            "x-ratelimit-reset-requests": f"{self.reset_s:.3f}s",
        }


class RateLimiter:
    """Keys are known ones, so there are never more buckets than keys."""

    def __init__(self, requests_per_minute: int) -> None:
        """Args: requests_per_minute: 0 for no limit."""
        self._limit = requests_per_minute
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, key: str, now_s: float) -> Left | None:
        """None where there is no limit.

        Raises:
            TooManyRequests: the bucket is empty; nothing was taken.
        """
        if self._limit == 0:
            return None
        level, seen_s = self._buckets.get(key, (float(self._limit), now_s))
        per_s = self._limit / MINUTE_S
        level = min(float(self._limit), level + (now_s - seen_s) * per_s)
        if level < 1:
            self._buckets[key] = (level, now_s)
            raise TooManyRequests(self._limit, (1 - level) / per_s, (self._limit - level) / per_s)
        self._buckets[key] = (level - 1, now_s)
        return Left(limit=self._limit, remaining=int(level - 1), reset_s=(self._limit - level + 1) / per_s)


def refused_headers(error: TooManyRequests) -> dict[str, str]:
    left = Left(limit=error.limit, remaining=0, reset_s=error.reset_s)
    return left.headers() | {"retry-after": str(ceil(error.retry_after_s))}
