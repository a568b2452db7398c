"""Legal histories of any shape: turns answered, failed and tried again, edits, deletions, erasures."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeVar

from hypothesis import strategies as st

from service.domain.artifact import ArtifactId, BootId, RefusalReason
from service.domain.conversation import Conversation, evolve
from service.domain.events import (
    AttemptFailed,
    ConversationCreated,
    ConversationDeleted,
    ConversationErased,
    ConversationEvent,
    ConversationId,
    ConversationUpdated,
    FunctionCallAccepted,
    FunctionCallOutputAccepted,
    ItemAccepted,
    ItemDeleted,
    ItemId,
    KvRebuilt,
    KvRefused,
    MessageAccepted,
    OnUpgrade,
    PlanKind,
    PolicyLevel,
    ReasoningAccepted,
    ResponseDeleted,
    Role,
    Sampling,
    TenantId,
    TurnAsked,
    TurnFailed,
    TurnId,
    TurnParsed,
    TurnPinned,
    TurnStarted,
    TurnStreamed,
)
from service.domain.evidence import Refusal
from service.domain.items import CallId, ItemKind, Part
from service.domain.turn import Turn, TurnState
from tests.domain.descriptors import V12, V13
from tests.domain.histories import completed

TENANT, CHAT = TenantId("acme"), ConversationId("conv_1")
ENGINE = BootId("boot_1")
T = TypeVar("T")


class Teller:
    """Each move is what a flow would append in one transaction, if it may be made now."""

    def __init__(self, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self.draw = draw
        self.numbers = count(1)
        self.state = Conversation(tenant=TENANT, id=CHAT)
        self.events: list[ConversationEvent] = []

    def choose(self, options: Sequence[T]) -> T:
        return options[self.draw(st.integers(0, len(options) - 1))]

    def move(self) -> None:
        turn = self.state.open_turn
        if self.state.erased is not None:
            return
        if turn is None:
            # Turns most often: a history without any has little to get wrong.
            idle: tuple[Callable[[], None], ...] = (
                *(self.start, self.start, self.start, self.say),
                *(self.edit, self.edit),
            )
            self.choose(idle)()
        elif turn.state is TurnState.STARTED:
            waiting: tuple[Callable[[Turn], None], ...] = (self.pin, self.pin, self.pin, self.fail)
            self.choose(waiting)(turn)
        else:
            running: tuple[Callable[[Turn], None], ...] = (
                *(self.complete, self.complete, self.complete),
                *(self.refuse, self.rebuild, self.lose, self.stream),
            )
            self.choose(running)(turn)

    def add(self, *events: ConversationEvent) -> None:
        for event in events:
            self.state = evolve(self.state, event)
            self.events.append(event)

    def said(self) -> MessageAccepted:
        item = ItemId(f"msg_{next(self.numbers)}")
        return MessageAccepted(item=item, role=Role.USER, text=f"{item} \u00fc \x00")

    def say(self) -> None:
        self.add(self.brought())

    def brought(self) -> ItemAccepted:
        """What a client may bring to a conversation: messages most often, and whatever else there is."""
        number = next(self.numbers)
        calls = [item.call for item in self.state.items if item.kind is ItemKind.FUNCTION_CALL and item.call]
        item, call = ItemId(f"item_{number}"), self.choose([*calls, CallId(f"call_{number}")])
        others: list[ItemAccepted] = [
            FunctionCallAccepted(item=item, call=CallId(f"call_{number}"), function="f", arguments="{}"),
            FunctionCallOutputAccepted(item=item, call=call, output="out \ud800"),
            ReasoningAccepted(item=item, text="hm \x00"),
        ]
        return self.choose([self.said(), self.said(), self.said(), *others])

    def start(self) -> None:
        messages = [self.brought() for _ in range(self.choose((1, 1, 2)))]
        started = TurnStarted(
            turn=TurnId(f"resp_{next(self.numbers)}"),
            items=tuple(m.item for m in messages),
            alias="production",
            on_upgrade=OnUpgrade.REPLAY,
            policy_level=PolicyLevel.DEFAULT,
            sampling=Sampling(max_output_tokens=16, temperature=0.0, top_p=1.0),
            metadata={"user": "u-1"} if self.choose((True, False)) else {},
        )
        self.add(*messages, started)
        if self.choose((True, False, False)):
            self.add(
                TurnAsked(
                    turn=started.turn, tools="[1]", tool_choice='"auto"', text_format="", instructions="hm"
                )
            )

    def pin(self, turn: Turn) -> None:
        self.add(
            TurnPinned(
                turn=turn.id,
                attempt=turn.attempt + 1,
                plan=PlanKind.COLD,
                reason="because",
                revision=V12.digest,
                engine=ENGINE,
                offer=None,
                carry_tokens=True,
            )
        )

    def fail(self, turn: Turn) -> None:
        self.add(TurnFailed(turn=turn.id, code="no_engine", message="none"))

    def update(self) -> None:
        self.add(ConversationUpdated(metadata={"n": str(next(self.numbers))}))

    def refuse(self, turn: Turn) -> None:
        refusal = Refusal(
            artifact=ArtifactId(f"kv_{next(self.numbers):08}"),
            reason=self.choose((RefusalReason.REVISION_MISMATCH, RefusalReason.CHECKSUM_MISMATCH)),
            detail="",
            differing=(),
        )
        self.add(
            KvRefused(
                turn=turn.id,
                attempt=turn.attempt,
                engine=ENGINE,
                engine_revision=V13.digest,
                refusal=refusal,
            )
        )

    def rebuild(self, turn: Turn) -> None:
        self.add(
            KvRebuilt(
                turn=turn.id,
                attempt=turn.attempt,
                rebuild=f"rb_{next(self.numbers)}",
                artifact=ArtifactId(f"kv_{next(self.numbers):08}"),
                revision=V13.digest,
                producer=ENGINE,
                tokens=32,
            )
        )

    def lose(self, turn: Turn) -> None:
        self.add(AttemptFailed(turn=turn.id, attempt=turn.attempt, reason="engine died", partial_text="half"))

    def stream(self, turn: Turn) -> None:
        self.add(
            TurnStreamed(
                turn=turn.id, item=ItemId("msg_s"), pieces=(2, 3), announced=(), lost=False, text="other"
            )
        )

    def complete(self, turn: Turn) -> None:
        """As its engine counts, `prompt_tokens` is the whole prompt."""
        window = self.state.window
        carried = window if self.choose((True, True, False)) else ()
        delta = tuple(next(self.numbers) for _ in range(self.choose((1, 3))))
        output = tuple(next(self.numbers) for _ in range(self.choose((1, 2))))
        if self.choose((True, False)):
            self.add(self.parsed(turn))
        self.add(
            completed(
                turn.id,
                turn.attempt,
                text=f"answer to {turn.id}",
                extends=self.state.last.turn if carried and self.state.last else None,
                prompt_delta=delta,
                output=output,
                prompt_tokens=len(carried) + len(delta),
                engine_revision=self.choose((V12, V13)).digest,
                frame=self.choose((None, "f7")),
            )
        )

    def parsed(self, turn: Turn) -> TurnParsed:
        number = next(self.numbers)
        parts = self.choose(
            (
                (Part(kind=ItemKind.MESSAGE, text=f"said {number}"),),
                (
                    Part(kind=ItemKind.REASONING, text="hm"),
                    Part(
                        kind=ItemKind.FUNCTION_CALL,
                        text="{}",
                        call=CallId(f"call_{number}"),
                        function="f",
                    ),
                ),
            )
        )
        items = tuple(ItemId(f"part_{number}_{place}") for place in range(len(parts)))
        return TurnParsed(turn=turn.id, attempt=turn.attempt, items=items, parts=parts)

    def edit(self) -> None:
        moves: list[Callable[[], None]] = [self.update]
        if self.state.items:
            moves += [self.delete_item, self.delete_item, self.delete_newest]
        if ended := [turn for turn in self.state.turns if turn not in self.state.deleted_responses]:
            moves.append(lambda: self.add(ResponseDeleted(turn=self.choose(ended))))
        if not self.state.deleted and self.choose((True, False, False)):
            moves.append(lambda: self.add(ConversationDeleted()))
        if self.choose((True, False, False, False)):
            moves.append(lambda: self.add(ConversationErased(by="key", reason="asked for")))
        self.choose(moves)()

    def delete_item(self) -> None:
        self.add(ItemDeleted(item=self.choose(self.state.items).id))

    def delete_newest(self) -> None:
        """Most often the one that no window holds yet."""
        self.say()
        self.add(ItemDeleted(item=self.state.items[-1].id))


@st.composite
def histories(draw: st.DrawFn, most: int = 30) -> list[ConversationEvent]:
    teller = Teller(draw)
    teller.add(ConversationCreated(alias="production", metadata={"user": "u-1"}))
    for _ in range(draw(st.integers(0, most))):
        teller.move()
    return teller.events
