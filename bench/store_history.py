"""What the benchmarks of the store write: one turn as events, and a million events as rows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from string import ascii_letters, digits

from service.domain.artifact import BootId
from service.domain.events import (
    Event,
    ItemId,
    KvSource,
    MessageAccepted,
    OnUpgrade,
    PlanKind,
    PolicyLevel,
    Role,
    Sampling,
    TurnCompleted,
    TurnId,
    TurnPinned,
    TurnStarted,
)
from service.domain.revision import RevisionDigest
from service.store.new_ids import new_id

PROMPT, OUTPUT = 80, 120
TURN_TOKENS = PROMPT + OUTPUT
VOCABULARY = 37_678
QUESTION_WORDS, ANSWER_WORDS = 80, 154
"""About 1,370 bytes a turn, 273 kB in 200 of them."""
LETTERS_A_WORD = 5.85
REVISION = RevisionDigest("rev_" + "13" * 32)
BOOT = BootId("boot_1")
Text = Callable[[int], str]
"""A text about as long as so many words."""

_chance = Random(1)  # noqa: S311 no secret
_SYLLABLES = [a + b for a in "bdfghklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er", "ing")]
WORDS = ["".join(_chance.choices(_SYLLABLES, k=_chance.choice((1, 2, 2, 3)))) for _ in range(3000)]
"""Made up, and used as unevenly as words are: a text of one sentence over and over would be compressed to nothing."""
_USES = [1 / rank for rank in range(1, len(WORDS) + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """In two transactions: what accepts it, and what completes it."""

    accepted: list[Event]
    completed: list[Event]

    @property
    def id(self) -> TurnId:
        return next(event.turn for event in self.accepted if isinstance(event, TurnStarted))


def history(turns: int, revision: RevisionDigest = REVISION, text: Text | None = None) -> Iterator[Turn]:
    """Each turn extends the window of the one before it; they are in `words` unless another text is given."""
    before: TurnId | None = None
    for number in range(turns):
        turn = one_turn(before, number * TURN_TOKENS, revision, text or words)
        yield turn
        before = turn.id


def one_turn(extends: TurnId | None, window: int, revision: RevisionDigest, text: Text) -> Turn:
    turn, said = TurnId(new_id("resp_")), ItemId(new_id("msg_"))
    accepted: list[Event] = [
        MessageAccepted(item=said, role=Role.USER, text=text(QUESTION_WORDS)),
        TurnStarted(
            turn=turn,
            items=(said,),
            alias="production",
            on_upgrade=OnUpgrade.REPLAY,
            policy_level=PolicyLevel.DEFAULT,
            sampling=Sampling(max_output_tokens=256, temperature=0.0, top_p=1.0),
        ),
    ]
    pinned = TurnPinned(
        turn=turn,
        attempt=1,
        plan=PlanKind.COLD,
        reason="same revision; no stored KV",
        revision=revision,
        engine=BOOT,
        offer=None,
        carry_tokens=True,
    )
    completed = TurnCompleted(
        turn=turn,
        attempt=1,
        item=ItemId(new_id("msg_")),
        text=text(ANSWER_WORDS),
        finish_reason="stop",
        extends=extends,
        prompt_delta=tuple(_chance.choices(range(VOCABULARY), k=PROMPT)),
        output=tuple(_chance.choices(range(VOCABULARY), k=OUTPUT)),
        prompt_tokens=window + PROMPT,
        local_tokens=0,
        kv_source=KvSource.NONE,
        kv_reason="same revision; no stored KV",
        requested_revision=revision,
        engine=BOOT,
        engine_revision=revision,
        loaded=None,
        published=None,
    )
    return Turn(accepted=accepted, completed=[pinned, completed])


def words(number: int) -> str:
    return " ".join(_chance.choices(WORDS, _USES, k=number))


def letters(words: int) -> str:
    """As long as so many words, and of a kind that PostgreSQL cannot compress: as keys, encoded images, or rare scripts are."""
    return "".join(_chance.choices(ascii_letters + digits, k=round(words * LETTERS_A_WORD)))


_REVISION = "'rev_' || repeat(CASE WHEN turn % 2 = 0 THEN '12' ELSE '13' END, 32)"

FILL_STEPS = (
    "TRUNCATE turns, artifacts, rebuilds",
    """INSERT INTO tenants (tenant_id) SELECT 'tenant' || n FROM generate_series(1, 20) AS n ON CONFLICT DO NOTHING""",
    """INSERT INTO revisions (revision, descriptor, label)
    SELECT 'rev_' || repeat(n, 32), json_build_object('kv', json_build_object('weights', n)), 'v' || n
    FROM unnest(ARRAY['12', '13']) AS n ON CONFLICT DO NOTHING""",
    """INSERT INTO events (tenant_id, stream, stream_version, type, schema_number, occurred_at, payload, chain)
    SELECT 'fleet', 'alias/production', n, 'alias.moved', 1, timestamptz '2026-03-01' + n * interval '1 day',
           jsonb_build_object('alias', 'production', 'revision', 'rev_' || repeat((12 + n % 2)::text, 32),
                              'previous', NULL, 'by', 'alice'), decode(repeat('00', 32), 'hex')
    FROM generate_series(1, 20) AS n""",
    """INSERT INTO events (tenant_id, stream, stream_version, type, schema_number, occurred_at, payload, chain)
    SELECT 'fleet', 'engine/boot_' || n, 1, 'engine.registered', 1, timestamptz '2026-03-01',
           jsonb_build_object('boot', 'boot_' || n, 'revision', 'rev_' || repeat((12 + n % 2)::text, 32),
                              'role', 'both', 'address', 'http://127.0.0.1:1'), decode(repeat('00', 32), 'hex')
    FROM generate_series(0, 19) AS n""",
    # Ten turns a conversation, seven events a turn; every tenth turn is rebuilt, with a refusal before.
    f"""INSERT INTO events
        (tenant_id, stream, stream_version, type, schema_number, occurred_at, payload, commitment, chain)
    SELECT 'tenant' || 1 + turn / 10 % 20, 'fill_' || turn / 10, 1 + turn % 10 * 7 + step, kind, 1,
           timestamptz '2026-03-01' + (turn * 10 + step) * interval '1 second',
           CASE kind
               WHEN 'conversation.created' THEN jsonb_build_object('alias', 'production')
               WHEN 'turn.started' THEN jsonb_build_object('turn', 'resp_f' || turn, 'alias', 'production',
                   'on_upgrade', 'replay', 'policy_level', 'default')
               WHEN 'turn.pinned' THEN jsonb_build_object('turn', 'resp_f' || turn, 'attempt', 1,
                   'plan', 'reuse', 'reason', 'same revision', 'revision', {_REVISION},
                   'engine', 'boot_' || turn % 20, 'offer', NULL, 'carry_tokens', true)
               WHEN 'kv.refused' THEN jsonb_build_object('turn', 'resp_f' || turn, 'attempt', 1,
                   'engine', 'boot_' || turn % 20, 'engine_revision', {_REVISION},
                   'refusal', jsonb_build_object('artifact', 'kv_f' || turn, 'reason', 'revision_mismatch',
                       'differing', jsonb_build_array('kv.weights'), 'detail', 'made under another revision'))
               WHEN 'kv.rebuilt' THEN jsonb_build_object('turn', 'resp_f' || turn, 'attempt', 1,
                   'rebuild', 'rb_f' || turn, 'artifact', 'kv_r' || turn, 'revision', {_REVISION},
                   'producer', 'boot_' || turn % 20, 'tokens', 200)
               WHEN 'turn.completed' THEN jsonb_build_object('turn', 'resp_f' || turn, 'attempt', 1,
                   'requested_revision', {_REVISION}, 'engine', 'boot_' || turn % 20,
                   'engine_revision', {_REVISION}, 'finish_reason', 'stop', 'extends', NULL,
                   'prompt_delta', 0, 'output', 0, 'prompt_tokens', 200, 'local_tokens', 0,
                   'kv_source', CASE WHEN turn % 10 = 5 THEN 'rebuilt' ELSE 'none' END, 'kv_reason', '-',
                   'loaded', CASE WHEN turn % 10 = 5 THEN jsonb_build_object('artifact', 'kv_r' || turn,
                       'revision', {_REVISION}, 'producer', 'boot_' || turn % 20, 'tokens', 200) END,
                   'published', 'kv_p' || turn)
               ELSE jsonb_build_object('item', 'msg_' || turn || '_' || step, 'role', 'user')
           END,
           CASE WHEN kind IN ('message.accepted', 'turn.completed') THEN decode(repeat('00', 32), 'hex') END,
           decode(repeat('00', 32), 'hex')
    FROM generate_series(0, :turns - 1) AS turn CROSS JOIN generate_series(0, 6) AS step,
    LATERAL (SELECT CASE step
        WHEN 0 THEN CASE WHEN turn % 10 = 0 THEN 'conversation.created' ELSE 'message.accepted' END
        WHEN 1 THEN 'message.accepted'
        WHEN 2 THEN 'turn.started'
        WHEN 3 THEN 'turn.pinned'
        WHEN 4 THEN CASE WHEN turn % 10 = 5 THEN 'kv.refused' ELSE 'message.accepted' END
        WHEN 5 THEN CASE WHEN turn % 10 = 5 THEN 'kv.rebuilt' ELSE 'message.accepted' END
        ELSE 'turn.completed' END) AS named (kind)""",  # noqa: S608 a constant
    """INSERT INTO event_contents (tenant_id, stream, stream_version, salt, content, tokens)
    SELECT tenant_id, stream, stream_version, decode(repeat('00', 16), 'hex'), convert_to(repeat('word ', 20), 'UTF8'),
           CASE WHEN type = 'turn.completed' THEN ''::bytea END
    FROM events WHERE type IN ('message.accepted', 'turn.completed') AND stream LIKE 'fill%'""",
    "ANALYZE",
)
