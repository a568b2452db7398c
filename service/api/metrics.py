"""What an operator counts; one registry for each application, none for the process."""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

TTFT_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.turns = Counter(
            "everturn_turns",
            "Turns that ended, by the plan of their last attempt.",
            ["plan", "status"],
            registry=self.registry,
        )
        self.attempts_failed = Counter(
            "everturn_attempts_failed", "Attempts that no answer was accepted from.", registry=self.registry
        )
        self.refusals = Counter(
            "everturn_kv_refusals",
            "KV artifacts that a decode engine refused.",
            ["reason"],
            registry=self.registry,
        )
        self.contract_uses = Counter(
            "everturn_kv_contract_uses",
            "Turns accepted on KV of another revision, under a compatibility contract.",
            registry=self.registry,
        )
        self.doorbell_failures = Counter(
            "everturn_doorbell_failures", "Rebuilds that the broker was not told of.", registry=self.registry
        )
        self.first_text_s = Histogram(
            "everturn_time_to_first_token_seconds",
            "From acceptance to the first token.",
            registry=self.registry,
            buckets=TTFT_BUCKETS_S,
        )
        self.rebuild_wait_s = Histogram(
            "everturn_rebuild_wait_seconds",
            "What a turn waited for its rebuild.",
            ["state"],
            registry=self.registry,
            buckets=TTFT_BUCKETS_S,
        )

    def exposition(self) -> bytes:
        return generate_latest(self.registry)
