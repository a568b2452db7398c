"""KV that relatives of a conversation have, or wait for, whose windows begin as its own does: forks, and what was forked."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from sqlalchemy import Connection

from service.domain.conversation import Ancestor
from service.domain.events import ConversationId
from service.domain.head import Head
from service.domain.plan import StoredArtifact
from service.domain.revision import RevisionDigest
from service.store import artifacts, families, heads
from service.store.families import Awaited


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    artifacts: tuple[StoredArtifact, ...] = ()
    """Its own and its ancestors' too, newest first; none where relatives add nothing."""
    rebuild: Awaited | None = None
    """That another's turn waits for."""


NOTHING = Found()


def look(conn: Connection, state: Head, revision: RevisionDigest, *, within: int) -> Found:
    """What leaves fewer than `within` tokens of the history to be prefilled, and takes not so many more than it would itself.

    Of two relatives at once, the second finds what the first has ordered.
    """
    line = [ancestor.conversation for ancestor in state.ancestors]
    relatives = families.relatives(conn, state.tenant, state.id, line)
    if not relatives:
        return NOTHING
    families.one_by_one(conn, state.tenant, line[-1] if line else state.id)
    holders = families.with_kv(conn, state.tenant, revision, relatives)
    waiting = families.awaited(conn, state.tenant, revision, [state.id, *relatives])
    if not (holders or waiting):
        return NOTHING
    window = heads.load_window(conn, state.tenant, state.id)
    enough = len(window) - within
    shared = _Shared(conn, state, window)
    if holders:
        theirs = map(shared.ancestor, holders)
        known = artifacts.of_conversation(conn, state.tenant, state.id, [*state.ancestors, *theirs])
        covering = tuple(one for one in known if one.revision != revision or one.tokens > enough)
        if any(one.revision == revision for one in covering):
            return Found(artifacts=covering)
    for awaited in waiting:
        if awaited.conversation == state.id:
            break
        common = min(shared.tokens(awaited.conversation), awaited.tokens)
        if common > enough and awaited.tokens - common < within:
            return Found(rebuild=awaited)
    return NOTHING


@dataclass(frozen=True, slots=True)
class _Shared:
    conn: Connection
    state: Head
    window: Sequence[int]

    def ancestor(self, conversation: ConversationId) -> Ancestor:
        """As which its KV is good."""
        return Ancestor(conversation=conversation, tokens=self.tokens(conversation))

    def tokens(self, conversation: ConversationId) -> int:
        """With which its window and this one begin."""
        theirs = heads.load_window(self.conn, self.state.tenant, conversation)
        return sum(1 for _ in takewhile(_alike, zip(self.window, theirs, strict=False)))


def _alike(pair: tuple[int, int]) -> bool:
    return pair[0] == pair[1]
