"""How many retries a worker may add to its load: a share of its requests, and a few a second besides.

Without a bound, engines that fail under load get twice or three times that load. Pure: counts and the
clock's reading come in.
"""


class RetryBudget:
    """A bucket that requests fill and retries empty."""

    __slots__ = ("_at", "_seen", "_tokens", "min_per_s", "share")

    #: The bucket holds what so many seconds of the minimum give and the shares of so many requests: a
    #: quiet hour must not pay for a storm.
    DEPTH = 10.0
    DEPTH_REQUESTS = 1000

    def __init__(self, share: float, min_per_s: float, now: float) -> None:
        self.share = share
        self.min_per_s = min_per_s
        self._tokens = min_per_s * self.DEPTH
        self._seen = 0
        self._at = now

    def adjust(self, share: float, min_per_s: float) -> None:
        """Other settings from now on; what is in the bucket stays."""
        self.share, self.min_per_s = share, min_per_s

    def take(self, now: float, requests: int) -> bool:
        """Whether one more retry is within the budget, taken with this. `requests`: all that ever came,
        so that the hot path has nothing to do but to count."""
        elapsed_s = max(0.0, now - self._at)
        came = requests - self._seen
        self._at, self._seen = max(now, self._at), requests
        most = self.min_per_s * self.DEPTH + self.share * self.DEPTH_REQUESTS
        self._tokens = min(most, self._tokens + elapsed_s * self.min_per_s + came * self.share)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
