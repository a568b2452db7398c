"""`everturn erase conversation | end-user | again`: what was said goes for good, with the KV made of it; the record stays."""

import argparse
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from service.domain.artifact import ArtifactId
from service.domain.errors import InvalidInput
from service.domain.events import ConversationErased, ConversationId, TenantId
from service.erasure_flow import Erasure, erase_conversation
from service.store import ancestry, event_store
from service.store.end_users import conversations_of
from stack import database
from stack.caller import caller
from stack.commands.parsers import Commands
from workers.kv_connector.store_address import HELP, full_address
from workers.kv_forgetter import forget_erased

REMAINS = (
    "What this cannot reach: backups and archived WAL from before, until they expire; copies that clients, "
    "exports and logs outside Everturn hold; dead rows until the next vacuum of event_contents."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    tenant: TenantId
    conversation: ConversationId
    reason: str


def add(commands: Commands) -> None:
    erase = commands.add_parser("erase", help="remove what was said, for good")
    kinds = erase.add_subparsers(dest="kind", required=True, metavar="WHAT")
    one = kinds.add_parser("conversation", help="one conversation", description=REMAINS)
    one.add_argument("conversation", help="conv_...")
    user = kinds.add_parser("end-user", help="all conversations of a person", description=REMAINS)
    user.add_argument("entry", metavar="KEY=VALUE", type=_entry, help="of the conversations' metadata")
    user.add_argument("--dry-run", action="store_true", help="only list them")
    for parser, run in ((one, _conversation), (user, _end_user)):
        database.add_argument(parser)
        parser.add_argument("--tenant", required=True)
        parser.add_argument("--reason", default="", help="kept in the record")
        parser.add_argument("--store", help=f"{HELP} (default: kv in --data)")
        parser.set_defaults(run=run)
    again = kinds.add_parser(
        "again",
        help="all that an export lists as erased: after an older backup was restored",
        description=REMAINS,
    )
    again.add_argument(
        "export", type=Path, metavar="FILE", help="what `everturn events export` wrote of the newer record"
    )
    database.add_argument(again)
    again.add_argument("--store", help=f"{HELP} (default: kv in --data)")
    again.set_defaults(run=_again)


def _entry(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"'{text}' is not KEY=VALUE, such as user=u-17")
    return key, value


def _conversation(given: argparse.Namespace) -> int:
    return _erase(given, _asked(given, [ConversationId(given.conversation)]))


def _end_user(given: argparse.Namespace) -> int:
    key, value = given.entry
    tenant = TenantId(given.tenant)
    with database.connected(given) as conn:
        found = conversations_of(conn, tenant=tenant, key=key, value=value)
        forks = {chat: ancestry.descendants(conn, tenant, chat) for chat in found}
    if not found:
        raise InvalidInput(
            f"No conversation of tenant {given.tenant} has '{key}' as '{value}' in its metadata."
        )
    if given.dry_run:
        for chat in found:
            print(f"{chat}, with its forks {', '.join(forks[chat])}" if forks[chat] else chat)
        return 0
    return _erase(given, _asked(given, found))


def _asked(given: argparse.Namespace, conversations: Iterable[ConversationId]) -> list[Asked]:
    tenant = TenantId(given.tenant)
    return [Asked(tenant=tenant, conversation=chat, reason=given.reason) for chat in conversations]


def _again(given: argparse.Namespace) -> int:
    """What the restored record does not know yet needs no erasing; it is named, so that nobody takes it for done."""
    erasures = _erasures(given.export)
    known, unknown = list[Asked](), list[Asked]()
    with database.connected(given) as conn:
        for asked in erasures:
            there = event_store.load_conversation(conn, asked.tenant, asked.conversation).exists
            (known if there else unknown).append(asked)
    for asked in unknown:
        print(f"{asked.conversation} of tenant {asked.tenant} is not in this record")
    print(
        f"{len(erasures)} conversations are listed as erased, {len(unknown)} of them are not in this record"
    )
    return _erase(given, known)


def _erasures(export: Path) -> list[Asked]:
    """Raises: InvalidInput: naming file and line."""
    found = dict[tuple[str, str], Asked]()
    try:
        with export.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if (one := _erasure(line, f"{export}: line {number}")) is not None:
                    found[one.tenant, one.conversation] = one
    except OSError as error:
        raise InvalidInput(f"{export} cannot be read: {error.strerror}.") from error
    return list(found.values())


def _erasure(line: bytes, where: str) -> Asked | None:
    """None for another event."""
    try:
        event = json.loads(line)
        if event["type"] != ConversationErased.name:
            return None
        return Asked(
            tenant=TenantId(event["tenant"]),
            conversation=ConversationId(event["stream"]),
            reason=event["payload"]["reason"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{where} is no event; give what `everturn events export` wrote.") from error


def _erase(given: argparse.Namespace, conversations: Iterable[Asked]) -> int:
    artifacts = set[ArtifactId]()
    for asked in conversations:
        with database.connected(given) as conn:
            erased = erase_conversation(
                conn,
                tenant=asked.tenant,
                conversation=asked.conversation,
                by=caller(),
                reason=asked.reason,
                now=datetime.now(UTC),
            )
        print(_told(erased))
        artifacts.update(erased.artifacts)
    status = _forget_kv(given, artifacts)
    print(REMAINS)
    return status


def _told(erased: Erasure) -> str:
    forks = f", with its forks {', '.join(erased.forks)}" if erased.forks else ""
    parent = f"; what it began with is said in {erased.parent}, and stays" if erased.parent else ""
    if not erased.fresh and not erased.contents:
        return f"{erased.conversation} was erased before{parent}"
    return (
        f"{erased.conversation} is erased{forks}: {erased.contents} events lost what was said, and a tombstone stays"
        + parent
    )


def _forget_kv(given: argparse.Namespace, artifacts: Collection[ArtifactId]) -> int:
    if not artifacts:
        return 0
    address = full_address(given.store or given.data / "kv")
    with database.engine(given) as engine:
        forgotten = forget_erased(engine, address, only=artifacts)
    for artifact, why in forgotten.failed:
        print(f"{artifact} could not be deleted: {why}")
    print(
        f"{forgotten.artifacts} manifests and {forgotten.blocks} blocks of KV are gone from {address}; "
        f"{forgotten.shared} blocks stay, since other conversations begin with the same tokens"
    )
    if forgotten.missing:
        print(
            f"{forgotten.missing} artifacts are not in it: they ended before, or lie in another store, to be named with --store"
        )
    if forgotten.failed:
        print(
            "A KV collector with --forget-erased tries again by itself; audit.kv_deletions shows what is left"
        )
    return 1 if forgotten.failed else 0
