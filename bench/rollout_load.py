"""People who talk, think and talk on, over a rollout: a stopwatch at the first word of each answer."""

import json
import random
import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import httpx

MAX_TOKENS = 12
THINK_S = (2.0, 5.0)
SYSTEM_WORDS = 260
FEWEST_TURNS = 2
TIMEOUT_S = 180.0
PATIENCE_S = 480.0
WORDS = (
    "harbour",
    "museum",
    "lighthouse",
    "ticket",
    "garden",
    "market",
    "bridge",
    "island",
    "ferry",
    "morning",
    "evening",
    "river",
    "baker",
    "carpenter",
    "window",
    "captain",
    "ladder",
    "orchard",
    "station",
    "letter",
    "music",
    "winter",
    "summer",
    "castle",
    "mountain",
    "village",
    "teacher",
    "sailor",
)


class Phase(StrEnum):
    BEFORE = "before"
    DURING = "during"
    AFTER = "after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    phase: Phase
    first_text_s: float
    ok: bool
    turn: str = ""
    conversation: str = ""
    revision: str = ""
    plan: str = ""
    words: str = ""


@dataclass(slots=True)
class Person(ABC):
    number: int
    said: list[Said] = field(default_factory=list)
    talk: list[dict[str, str]] = field(default_factory=list)
    """The messages so far, as a client would keep them."""

    @abstractmethod
    def ask(self, text: str, phase: Phase) -> Said: ...


@dataclass(slots=True)
class Guest(Person):
    """Of the service: a conversation by its id, and nothing sent twice."""

    url: str = ""
    key: str = ""
    alias: str = ""
    conversation: str = ""

    def ask(self, text: str, phase: Phase) -> Said:
        headers = {"authorization": f"Bearer {self.key}"}
        with httpx.Client(
            base_url=f"{self.url}/v1", headers=headers, timeout=TIMEOUT_S, trust_env=False
        ) as http:
            if not self.conversation:
                item = {"type": "message", "role": "system", "content": instructions(self.number)}
                made = http.post("/conversations", json={"items": [item], "alias": self.alias})
                self.conversation = made.raise_for_status().json()["id"]
            body = {
                "model": self.alias,
                "conversation": self.conversation,
                "input": text,
                "temperature": 0,
                "max_output_tokens": MAX_TOKENS,
                "stream": True,
            }
            began, first, last = time.monotonic(), 0.0, dict[str, Any]()
            with http.stream("POST", "/responses", json=body) as answer:
                for event in events(answer):
                    if event["type"] == "response.output_text.delta" and not first:
                        first = time.monotonic() - began
                    last = event
        response = last.get("response") or {}
        return Said(
            phase=phase,
            first_text_s=first or time.monotonic() - began,
            ok=last.get("type") in ("response.completed", "response.incomplete"),
            turn=response.get("id", ""),
            conversation=self.conversation,
            revision=response.get("revision", ""),
            plan=(response.get("kv") or {}).get("plan", ""),
            words=json.dumps(response.get("error") or ""),
        )


@dataclass(slots=True)
class Resender(Person):
    """Of an engine, past the service: sends all that was said with each turn, to whichever engine serves now."""

    address: list[str] = field(default_factory=list)
    """Of the engine; the last is the one that serves."""

    def ask(self, text: str, phase: Phase) -> Said:
        address = self.address[-1]
        if not self.talk:
            self.talk = [{"role": "system", "content": instructions(self.number)}]
        self.talk.append({"role": "user", "content": text})
        body = {
            "model": "chat",
            "messages": self.talk,
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
            "stream": True,
        }
        began, first, answer = time.monotonic(), 0.0, ""
        with (
            httpx.Client(timeout=TIMEOUT_S, trust_env=False) as http,
            http.stream("POST", f"{address}/v1/chat/completions", json=body) as stream,
        ):
            stream.raise_for_status()
            for event in events(stream):
                said = event["choices"][0]["delta"].get("content") if event.get("choices") else None
                if said and not first:
                    first = time.monotonic() - began
                answer += said or ""
        self.talk.append({"role": "assistant", "content": answer})
        return Said(
            phase=phase, first_text_s=first or time.monotonic() - began, ok=bool(answer), revision=address
        )


class Crowd:
    """All talk at once, each in a thread of its own, until the block is left. What they ask and when is the same for every crowd."""

    def __init__(self, people: Sequence[Person]) -> None:
        self.people = people
        self.phase = Phase.BEFORE
        self._over = threading.Event()

    @contextmanager
    def talking(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._talk, args=one) for one in enumerate(self.people)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def wait_for_all(self, revision: str) -> None:
        """Until everyone has had an answer of it."""
        self._wait(lambda said: any(one.revision == revision for one in said), f"was answered by {revision}")

    def wait_for_turns(self, turns: int) -> None:
        """Until everyone has begun and ended so many in this phase."""
        phase = self.phase
        self._wait(
            lambda said: sum(one.phase is phase for one in said) >= turns, f"had {turns} turns {phase}"
        )

    def _wait(self, enough: Callable[[list[Said]], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not all(enough(person.said) for person in self.people):
            if time.monotonic() > deadline:
                raise SystemExit(f"not everyone {what} within {PATIENCE_S:.0f} s")
            time.sleep(0.05)

    def said(self) -> list[Said]:
        return [said for person in self.people for said in person.said]

    def settled(self) -> list[Said]:
        """Without everyone's first turn, for which nothing is stored anywhere."""
        return [said for person in self.people for said in person.said[1:]]

    def _talk(self, place: int, person: Person) -> None:
        source = random.Random(f"talk {place}")  # noqa: S311 no secret
        while True:
            text = f"What of the {source.choice(WORDS)} and the {source.choice(WORDS)}?"
            phase, began = self.phase, time.monotonic()
            try:
                said = person.ask(text, phase)
            except httpx.HTTPError as error:
                said = Said(phase=phase, first_text_s=time.monotonic() - began, ok=False, words=repr(error))
            person.said.append(said)
            if self._over.wait(source.uniform(*THINK_S)):
                return


def instructions(number: int) -> str:
    source = random.Random(f"instructions {number}")  # noqa: S311 no secret
    return "You answer in short sentences. " + " ".join(source.choices(WORDS, k=SYSTEM_WORDS)) + "."


def events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line.startswith("data: {"):
            event: dict[str, Any] = json.loads(line.removeprefix("data: "))
            yield event


def p95(said: Sequence[Said]) -> float:
    """Seconds to the first text."""
    return _percentiles(said)[1]


def _percentiles(said: Sequence[Said]) -> tuple[float, float]:
    took = sorted(one.first_text_s for one in said)
    if len(took) < FEWEST_TURNS:
        raise SystemExit(f"too few turns to tell their p95: {len(took)}")
    return statistics.median(took), statistics.quantiles(took, n=20, method="inclusive")[-1]


def report(name: str, said: Sequence[Said]) -> None:
    for phase in Phase:
        turns = [one for one in said if one.phase is phase]
        if not turns:
            continue
        plans = Counter(one.plan for one in turns if one.plan)
        planned = "".join(f", {count} {plan}" for plan, count in sorted(plans.items()))
        p50, late = _percentiles(turns)
        print(
            f"{name}, {phase}: {len(turns)} turns{planned}; first text p50 {p50:.2f} s, p95 {late:.2f} s",
            flush=True,
        )
