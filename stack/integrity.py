"""Signs checkpoints of the log and verifies it against them: what `everturn audit checkpoint` and `verify` do."""

from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection

from service.store import checkpoint, integrity
from service.store.signing import load_or_make_key, load_public_key

SHOWN_BREAKS = 20


def sign_checkpoint(conn: Connection, *, out: Path, key: Path) -> int:
    """In a transaction that sees one snapshot. Raises: InvalidInput: `out` exists, or `key` is no key of ours."""
    count = checkpoint.write(out, checkpoint.heads(conn), load_or_make_key(key), datetime.now(UTC))
    print(
        f"{out}: the heads of {count} streams, signed with {key}. Keep it where this database's writers cannot."
    )
    return 0


def verify_log(conn: Connection, *, against: Path | None, public_key: Path) -> int:
    """In a transaction that sees one snapshot; status 1 where anything is wrong.

    Raises:
        InvalidInput: a checkpoint that is not whole, or not signed with this key.
    """
    if against is not None:
        checkpoint.check_signature(against, load_public_key(public_key))
    walked = integrity.Walked()
    broken = 0
    for broken, found in enumerate(integrity.verify(conn, walked), 1):
        _show(broken, found)
    print(
        f"{walked.events} events in {walked.streams} streams, {walked.erased} of them erased: "
        f"{broken or 'no'} broken chain{'' if broken == 1 else 's'}"
    )
    lost = 0
    if against is not None:
        for lost, found in enumerate(checkpoint.compare(conn, against), 1):
            _show(lost, found)
        print(f"against {against}: {lost or 'no'} stream{'' if lost == 1 else 's'} cut off or made anew")
    else:
        print(
            "without --checkpoint, a tail that was cut off and a chain made anew from its start stay unseen"
        )
    return 1 if broken or lost else 0


def _show(number: int, found: integrity.Break) -> None:
    if number <= SHOWN_BREAKS:
        print(f"BROKEN {found}")
    elif number == SHOWN_BREAKS + 1:
        print("BROKEN further ones are only counted")
