"""An engine's adapters reach the API within a heartbeat or two, and whatever one of the two goes through ends nothing."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.domain.adapter import Adapter, ServedAdapter, UnknownAdapter, effective
from service.domain.artifact import BootId
from service.domain.canary import Generation
from service.domain.errors import EngineFailed, Unavailable
from service.domain.plan import EngineRole
from tests.domain.descriptors import V12
from workers.adapter_canary import AdapterCanaries
from workers.fleet_client import Canary, FleetClient, Registration
from workers.membership import Membership

A, B = "a" * 64, "b" * 64
LEASE_S = 30.0
BEAT_S = LEASE_S / 3


def served(model: str, adapter: str = A) -> ServedAdapter:
    return ServedAdapter(model=model, adapter=adapter, revision=effective(V12, adapter).digest)


LEGAL, STYLE = served("legal"), served("style", B)
RAW = UnknownAdapter(model="raw", reason="loaded past us")


@dataclass(slots=True)
class Api:
    """As /admin/engines, of one boot."""

    calls: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    """What each heartbeat says of the engine's load."""
    known: bool = False
    held: dict[str, str | None] = field(default_factory=dict)
    knows_adapters: bool = True
    down: bool = False
    canaries: list[dict[str, Any] | None] = field(default_factory=list)
    """As they came with the adapters."""
    refuses: set[str] = field(default_factory=set)
    """By name: whose canaries are not those of their revisions."""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        what = request.url.path.removeprefix("/admin/engines").rpartition("/")[2] or "register"
        if self.down:
            return httpx.Response(503)
        self.calls.append(what)
        if what == "register":
            self.known = True
            return httpx.Response(201, json={"lease_s": LEASE_S})
        if not self.known:
            return httpx.Response(404)
        if what == "heartbeat":
            self.told.append(request.url.query.decode())
        if what == "adapters":
            told: list[dict[str, Any]] = httpx.Response(200, content=request.content).json()["adapters"]
            self.canaries.append(httpx.Response(200, content=request.content).json().get("canaries"))
            served = [one if one["model"] not in self.refuses else _refused(one) for one in told]
            self.held = {adapter["model"]: adapter.get("revision") for adapter in served}
            return httpx.Response(200, json={"adapters": served})
        return httpx.Response(
            200, json={"lease_s": LEASE_S} | ({"adapters": self.held} if self.knows_adapters else {})
        )


def _refused(adapter: dict[str, Any]) -> dict[str, Any]:
    return {"model": adapter["model"], "reason": "it does not answer the canary"}


@dataclass(slots=True)
class Engine:
    adapters: tuple[Adapter, ...] | None = (LEGAL,)
    silent: bool = False
    running: int | None = None

    asked: list[str] = field(default_factory=list)
    """Under which adapters it was asked the canary."""
    mute: set[str] = field(default_factory=set)

    def __call__(self) -> tuple[Adapter, ...] | None:
        if self.silent:
            raise Unavailable("the engine does not say what it is")
        return self.adapters

    def ask(self, model: str) -> Canary:
        self.asked.append(model)
        if model in self.mute:
            raise EngineFailed("it has no answer")
        return Canary(generation=Generation(prompt=(1,), answer=(len(self.asked),)), compared=16)


@dataclass(slots=True)
class Scene:
    api: Api
    engine: Engine
    membership: Membership
    now: float = 0.0

    def after(self, seconds: float = BEAT_S) -> dict[str, str | None]:
        """What the API holds once so much time has passed, beat for beat."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 0.5, end)
            self.membership.keep(self.now)
        return self.api.held


def test_an_engine_that_ends_goes_by_force_whoever_is_pinned_to_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("engine-key")
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.raw_path.decode()}")
        return httpx.Response(200, json={})

    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        client = FleetClient(http=http, api="http://api", key_file=tmp_path / "key")
        client.drain(BootId("boot_1"))
        client.forget(BootId("boot_1"))
    assert asked == [
        "POST /admin/engines/boot_1/drain?force=true",
        "DELETE /admin/engines/boot_1?force=true",
    ]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    (tmp_path / "key").write_text("engine-key")
    api = Api()
    http = httpx.Client(transport=httpx.MockTransport(api))
    client = FleetClient(http=http, api="http://api", key_file=tmp_path / "key")
    registration = Registration(
        boot=BootId("boot_a"),
        address="http://127.0.0.1:9",
        role=EngineRole.BOTH,
        descriptor=V12,
        expected_revision=None,
    )

    def make(*adapters: Adapter, takes: bool = True, asked: bool = True) -> Scene:
        engine = Engine(adapters if takes else None)
        membership = Membership(
            client,
            registration,
            served=engine,
            running=lambda: engine.running,
            canaries=AdapterCanaries(engine.ask if asked else None),
        )
        return Scene(api=api, engine=engine, membership=membership)

    yield make
    http.close()


def revisions(*adapters: ServedAdapter) -> dict[str, str | None]:
    return {adapter.model: adapter.revision for adapter in adapters}


def test_adapters_are_told_as_soon_as_the_engine_is_registered(scene: Callable[..., Scene]) -> None:
    one = scene(LEGAL, STYLE)
    assert one.after(1.5) == revisions(LEGAL, STYLE)
    assert one.api.calls == ["register", *["heartbeat", "adapters"] * 2]


def test_all_are_told_of_at_once_where_none_is_asked_anything(scene: Callable[..., Scene]) -> None:
    one = scene(LEGAL, STYLE, asked=False)
    assert one.after(1.0) == revisions(LEGAL, STYLE)
    assert one.api.calls == ["register", "heartbeat", "adapters"]
    assert (one.engine.asked, one.api.canaries) == ([], [None])


def test_each_is_asked_the_canary_once_and_told_of_with_its_answer(scene: Callable[..., Scene]) -> None:
    one = scene(LEGAL, STYLE)
    one.after(5 * BEAT_S)
    one.api.known, one.api.held = False, {}
    one.after(2 * BEAT_S)
    assert one.engine.asked == ["legal", "style"]
    answers = {"legal": [1], "style": [2]}
    assert [{name: c["answer"] for name, c in (told or {}).items()} for told in one.api.canaries] == [
        {"legal": [1]},
        answers,
        answers,
    ]


def test_one_that_answers_otherwise_than_its_revision_is_left_in_peace_until_it_is_another(
    scene: Callable[..., Scene], caplog: pytest.LogCaptureFixture
) -> None:
    one = scene(LEGAL, STYLE)
    one.api.refuses = {"legal"}
    assert one.after(5 * BEAT_S) == {"legal": None} | revisions(STYLE)
    assert one.api.calls.count("adapters") == 2
    assert "adapter 'legal' gets no turns: it does not answer the canary" in caplog.text
    one.engine.adapters = (served("legal", B), STYLE)
    one.api.refuses = set()
    assert one.after(2 * BEAT_S) == revisions(served("legal", B), STYLE)


def test_one_without_an_answer_keeps_no_other_waiting_and_is_asked_again(
    scene: Callable[..., Scene],
) -> None:
    one = scene(LEGAL, STYLE)
    one.engine.mute = {"legal"}
    assert one.after(2 * BEAT_S) == {"legal": None} | revisions(STYLE)
    one.engine.mute = set()
    assert one.after(2 * BEAT_S) == revisions(LEGAL, STYLE)


def test_what_is_known_is_not_told_again(scene: Callable[..., Scene]) -> None:
    one = scene(LEGAL, RAW)
    one.after(10 * BEAT_S)
    assert one.api.calls.count("adapters") == 1
    assert one.api.held == {"legal": LEGAL.revision, "raw": None}


def test_a_load_and_an_unload_show_within_two_heartbeats(scene: Callable[..., Scene]) -> None:
    one = scene(LEGAL)
    one.after(1.0)
    one.engine.adapters = (LEGAL, STYLE)
    assert one.after(2 * BEAT_S) == revisions(LEGAL, STYLE)
    one.engine.adapters = (STYLE,)
    assert one.after(2 * BEAT_S) == revisions(STYLE)
    one.engine.adapters = ()
    assert one.after(2 * BEAT_S) == {}


def test_an_api_that_has_forgotten_them_is_told_again(scene: Callable[..., Scene]) -> None:
    one = scene(LEGAL)
    one.after(1.0)
    one.api.held = {}
    assert one.after(2 * BEAT_S) == revisions(LEGAL)
    one.api.known, one.api.held = False, {}
    assert one.after(2 * BEAT_S) == revisions(LEGAL)
    assert one.api.calls.count("register") == 2


def test_one_that_loses_its_identity_gets_no_more_turns(scene: Callable[..., Scene]) -> None:
    one = scene(LEGAL)
    one.after(1.0)
    one.engine.adapters = (UnknownAdapter(model="legal", reason="its copy was changed"),)
    assert one.after(2 * BEAT_S) == {"legal": None}


def test_each_heartbeat_tells_how_many_requests_the_engine_has_then_or_nothing_where_it_does_not_say(
    scene: Callable[..., Scene],
) -> None:
    one = scene(takes=False)
    one.engine.running = 7
    one.after(2 * BEAT_S)
    one.engine.running = None
    one.after(BEAT_S)
    assert one.api.told == ["requests=7", ""]


def test_an_engine_that_takes_no_adapters_tells_nothing(scene: Callable[..., Scene]) -> None:
    one = scene(takes=False)
    one.after(4 * BEAT_S)
    assert "adapters" not in one.api.calls
    assert one.api.calls.count("heartbeat") == 3


def test_an_engine_that_is_silent_keeps_its_lease_and_what_is_known_of_it(
    scene: Callable[..., Scene],
) -> None:
    one = scene(LEGAL)
    one.after(1.0)
    one.engine.silent = True
    beats = one.api.calls.count("heartbeat")
    assert one.after(2 * BEAT_S) == revisions(LEGAL)
    assert one.api.calls.count("heartbeat") > beats
    one.engine.silent, one.engine.adapters = False, (STYLE,)
    assert one.after(2 * BEAT_S) == revisions(STYLE)


def test_an_api_that_was_away_is_told_when_it_is_back(scene: Callable[..., Scene]) -> None:
    one = scene(LEGAL)
    one.after(1.0)
    one.api.down, one.engine.adapters = True, (STYLE,)
    one.after(2 * BEAT_S)
    one.api.down = False
    assert one.after(BEAT_S) == revisions(STYLE)


def test_an_api_of_before_adapters_is_left_in_peace_and_said_once(
    scene: Callable[..., Scene], caplog: pytest.LogCaptureFixture
) -> None:
    one = scene(LEGAL)
    one.api.knows_adapters = False
    one.after(5 * BEAT_S)
    assert "adapters" not in one.api.calls
    assert caplog.text.count("knows of no adapters") == 1


def test_a_draining_engine_goes_on_telling_what_it_serves(scene: Callable[..., Scene]) -> None:
    one = scene(LEGAL, STYLE)
    one.after(1.0)
    one.membership.drain()
    one.engine.adapters = (STYLE,)
    assert one.after(2 * BEAT_S) == revisions(STYLE)
