"""Requests a minute for each key, and what its holder is told."""

import pytest

from service.api.rate_limit import RateLimiter
from service.domain.errors import TooManyRequests
from tests.api.stack import running_stack


def test_a_full_bucket_gives_its_limit_at_once_and_then_one_at_a_time() -> None:
    rates = RateLimiter(60)
    left = [rates.take("k", 0.0) for _ in range(60)]
    assert [one.remaining for one in left if one] == list(range(59, -1, -1))
    with pytest.raises(TooManyRequests) as refusal:
        rates.take("k", 0.25)
    assert refusal.value.retry_after_s == pytest.approx(0.75)
    assert rates.take("k", 1.0) is not None
    with pytest.raises(TooManyRequests):
        rates.take("k", 1.0)


def test_a_refused_request_takes_nothing() -> None:
    rates = RateLimiter(1)
    rates.take("k", 0.0)
    for second in range(1, 60):
        with pytest.raises(TooManyRequests):
            rates.take("k", float(second))
    assert rates.take("k", 60.0) is not None


def test_a_rested_bucket_holds_no_more_than_its_limit() -> None:
    rates = RateLimiter(2)
    assert [rates.take("k", 1e6), rates.take("k", 1e6)]
    with pytest.raises(TooManyRequests):
        rates.take("k", 1e6)


def test_keys_do_not_share_a_bucket_and_zero_is_no_limit() -> None:
    rates = RateLimiter(1)
    rates.take("k", 0.0)
    assert rates.take("other", 0.0) is not None
    assert all(RateLimiter(0).take("k", 0.0) is None for _ in range(5))


def test_answers_say_what_is_left_and_the_last_one_when_to_come_again(database: str) -> None:
    with running_stack(database, requests_per_minute=2) as stack:
        first = stack.http.get("/v1/models")
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert first.headers["x-ratelimit-reset-requests"].endswith("s")
        missing = stack.http.get("/v1/conversations/conv_none")
        assert (missing.status_code, missing.headers["x-ratelimit-remaining-requests"]) == (404, "0")
        refused = stack.http.get("/v1/models")
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert 0 < int(refused.headers["retry-after"]) <= 30
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert stack.client(stack.other_tenant()).get("/v1/models").status_code == 200
        assert all(stack.admin.get("/admin/aliases").status_code == 200 for _ in range(3))
