"""What an operator counts; one registry for each application, none for the process."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from service.domain.plan import RebuildQueue
from service.store.rebuild_totals import Ended, Labels
from service.store.waiting import Waiting, counts

TTFT_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.ended = Ended()
        """Rebuilds, as they were last counted."""
        self._shown: dict[Labels, int] = {}
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
        self.prefills_elsewhere = Counter(
            "everturn_prefills_elsewhere",
            "Prompts that an engine of role prefill was asked to prefill for another.",
            ["outcome"],
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
        self._gauges()

    def _gauges(self) -> None:
        """Of what all processes share, as it is at each look."""
        self.rebuilds = Gauge(
            "everturn_rebuild_queue_depth",
            "Rebuilds that wait for a worker or are under way.",
            ["queue", "state"],
            registry=self.registry,
        )
        self.oldest_rebuild_s = Gauge(
            "everturn_rebuild_queue_oldest_seconds",
            "Age of the oldest of them.",
            ["queue", "state"],
            registry=self.registry,
        )
        self.rebuild_tokens_per_s = Gauge(
            "everturn_rebuild_tokens_per_second",
            "That rebuilds prefilled in the last minute; those of a long one are spread over the time that it takes.",
            ["queue"],
            registry=self.registry,
        )
        self.rebuilds_ended = Counter(
            "everturn_rebuilds_ended",
            "Rebuilds that are done, failed or superseded, ever.",
            ["queue", "state"],
            registry=self.registry,
        )
        self.rollout_percent = Gauge(
            "everturn_rollout_percent",
            "Of the alias's conversations, those that its rollout has moved.",
            ["alias", "state"],
            registry=self.registry,
        )
        self.turns_queued = Gauge(
            "everturn_turn_queue_depth",
            "Turns that workers run or are to run.",
            ["kind", "state"],
            registry=self.registry,
        )
        self.oldest_turn_s = Gauge(
            "everturn_turn_queue_oldest_seconds",
            "Seconds since the oldest of them was accepted.",
            ["kind", "state"],
            registry=self.registry,
        )
        self.turns_waiting = Gauge(
            "everturn_turns_waiting",
            "Turns without an attempt under way: they wait for an engine of the alias, for the next attempt, or for a worker.",
            ["alias", "reason"],
            registry=self.registry,
        )
        self.turns_recovered = Gauge(
            "everturn_turns_recovered",
            "Turns that were taken from a process that went silent or was stopped, ever.",
            registry=self.registry,
        )

    def show_turns(self, depths: Mapping[tuple[str, str], tuple[int, float]], recovered: int) -> None:
        """As `show_queues`."""
        for gauge in (self.turns_queued, self.oldest_turn_s):
            gauge.clear()
        for labels, (depth, oldest_s) in depths.items():
            self.turns_queued.labels(*labels).set(depth)
            self.oldest_turn_s.labels(*labels).set(oldest_s)
        self.turns_recovered.set(recovered)

    def show_waiting(self, lines: Mapping[str, Iterable[Waiting]]) -> None:
        """By alias, of which each is among them; as `show_queues`."""
        self.turns_waiting.clear()
        for alias, line in lines.items():
            for reason, number in counts(line).items():
                self.turns_waiting.labels(alias, reason).set(number)

    def show_queues(
        self,
        depths: Mapping[tuple[str, str], tuple[int, float]],
        percents: Mapping[tuple[str, str], int],
    ) -> None:
        """As they are at this moment, in the place of what was shown before."""
        for gauge in (self.rebuilds, self.oldest_rebuild_s, self.rollout_percent):
            gauge.clear()
        for labels, (depth, oldest_s) in depths.items():
            self.rebuilds.labels(*labels).set(depth)
            self.oldest_rebuild_s.labels(*labels).set(oldest_s)
        for labels, percent in percents.items():
            self.rollout_percent.labels(*labels).set(percent)

    def show_rebuilds(self, ended: Ended, tokens_per_s: Mapping[str, float]) -> None:
        """One that an operator has tried again has ended no more, and stays counted: a counter that falls begins anew."""
        for labels, number in ended.all.items():
            shown = self._shown.get(labels, 0)
            self.rebuilds_ended.labels(*labels).inc(max(0, number - shown))
            self._shown[labels] = max(number, shown)
        self.ended = ended
        for queue in RebuildQueue:
            self.rebuild_tokens_per_s.labels(queue).set(tokens_per_s.get(queue, 0.0))

    def exposition(self) -> bytes:
        return generate_latest(self.registry)
