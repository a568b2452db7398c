"""`everturn kv ls | stat | verify | quarantine | forget`: what lies in the KV store, and how to be rid of it."""

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import httpx

from service.domain.artifact import ArtifactId, BootId, parse_artifact_id
from service.domain.errors import InvalidInput
from stack.commands.parsers import Commands
from stack.errors import StackError
from workers import kv_upkeep
from workers.kv_connector.catalog import Catalog, Contents, distinct_bytes
from workers.kv_connector.store import BlockStore, own_name, words
from workers.kv_connector.store_address import HELP, open_store

SHOWN = 12
"""Characters of a digest that tell it from others in a table."""


def add(commands: Commands) -> None:
    kv = commands.add_parser("kv", help="list, check, put aside or forget stored KV")
    actions = kv.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, run, text in (
        ("ls", _ls, "artifacts, oldest first"),
        ("stat", _stat, "how much there is, and how much is shared"),
        ("verify", _verify, "read every block and check it; status 1 if any is damaged"),
        ("quarantine", _quarantine, "put artifacts where no engine finds them"),
        ("forget", _forget, "delete artifacts and the blocks that only they name"),
    ):
        action = actions.add_parser(name, help=text, description=text)
        _add_selection(action)
        action.set_defaults(run=run)
        if name == "forget":
            action.add_argument("--quarantined", action="store_true", help="what was put aside, instead")
        if name in {"quarantine", "forget"}:
            action.add_argument("--all", action="store_true", help="needed where nothing else selects")


def _add_selection(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("artifact", nargs="*", help="handles, kv_...")
    add("--store", help=f"{HELP} (default: kv in --data)")
    add("--revision", help="made under this revision: its digest, or the beginning of it")
    add("--boot", help="made by this boot of an engine, or naming a block that it made")
    add(
        "--since",
        type=_moment,
        metavar="TIME",
        help="made at or after; ISO 8601, UTC unless it says otherwise",
    )
    add("--until", type=_moment, metavar="TIME", help="made before")
    add("--conversation", help="recorded for this conversation by the service, which must be running")


def _moment(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no time such as 2026-01-31T12:00 (ISO 8601)") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _ls(given: argparse.Namespace) -> int:
    chosen = kv_upkeep.choose(*_looked_at(given), _selection(given)).artifacts
    print(
        f"{'artifact':28} {'revision':16} {'made':16} {'used':16} {'expires':16} {'tokens':>7} {'MB':>8}  boot"
    )
    for listed in chosen:
        times = " ".join(f"{_shown(ms):16}" for ms in (listed.created_ms, listed.used_ms, listed.expires_ms))
        size = distinct_bytes([listed]) / 1e6
        revision = listed.revision[: SHOWN + len("rev_")]
        print(f"{listed.artifact:28} {revision:16} {times} {listed.tokens:7} {size:8.1f}  {listed.producer}")
    print(f"{len(chosen)} artifacts, {distinct_bytes(chosen) / 1e6:.1f} MB")
    return 0


def _stat(given: argparse.Namespace) -> int:
    store, contents = _looked_at(given)
    chosen = kv_upkeep.choose(store, contents, _selection(given)).artifacts
    stored = distinct_bytes(chosen)
    apart = sum(distinct_bytes([listed]) for listed in chosen)
    orphans = contents.orphans()
    print(
        f"artifacts    {len(chosen)}, of {len({a.tenant for a in chosen})} tenants and {len({a.revision for a in chosen})} revisions"
    )
    print(
        f"blocks       {len({b.name for a in chosen for b in a.blocks})}, {stored / 1e6:.1f} MB; without sharing {apart / 1e6:.1f} MB"
    )
    print(f"orphans      {len(orphans)}, {sum(o.size for o in orphans) / 1e6:.1f} MB")
    print(f"unreadable   {len(contents.unreadable)} manifests")
    print(
        f"quarantined  {len(contents.quarantined)}, {sum(q.size for q in contents.quarantined) / 1e6:.1f} MB"
    )
    return 0


def _verify(given: argparse.Namespace) -> int:
    store, contents = _looked_at(given)
    chosen = kv_upkeep.choose(store, contents, _selection(given)).artifacts
    problems = kv_upkeep.verify(store, chosen)
    for problem in problems:
        print(f"{problem.artifact}: block {own_name(problem.name)} {problem.what}")
    for found in (*contents.unreadable, *contents.unanswered):
        print(f"{own_name(found.name)}: the manifest cannot be read")
    damaged = {problem.artifact for problem in problems}
    print(f"{len(chosen) - len(damaged)} artifacts are whole, {len(damaged)} are not")
    if damaged:
        print("Engines refuse them by themselves; `everturn kv quarantine HANDLE` puts one aside.")
    return 1 if problems or contents.unreadable or contents.unanswered else 0


def _quarantine(given: argparse.Namespace) -> int:
    return _act(given, "put aside", kv_upkeep.quarantine)


def _forget(given: argparse.Namespace) -> int:
    if given.quarantined:
        store, contents = _looked_at(given)
        names = [found.name for found in contents.quarantined]
        return _report(kv_upkeep.purge(store, names), "forgotten")
    status = _act(given, "forgotten", kv_upkeep.forget)
    if left := len(_looked_at(given)[1].quarantined):
        print(f"{left} quarantined files are untouched: `everturn kv forget --quarantined` deletes them")
    return status


def _act(
    given: argparse.Namespace,
    done: str,
    act: Callable[[BlockStore, Contents, kv_upkeep.Chosen], kv_upkeep.Removed],
) -> int:
    selection = _selection(given)
    if selection.is_everything and not given.all:
        raise StackError(
            "nothing selects what to remove: name handles, --revision, --boot, --since, --until or --conversation, or say --all"
        )
    store, contents = _looked_at(given)
    return _report(act(store, contents, kv_upkeep.choose(store, contents, selection)), done)


def _report(removed: kv_upkeep.Removed, done: str) -> int:
    print(f"{done}: {removed.artifacts} artifacts, {removed.blocks} blocks, {removed.bytes / 1e6:.1f} MB")
    if removed.shared:
        print(f"kept: {len(removed.shared)} blocks that artifacts outside the choice share")
    for name, why in removed.failed:
        print(f"not {done}: {name}: {why}")
    return 1 if removed.failed else 0


def _selection(given: argparse.Namespace) -> kv_upkeep.Selection:
    handles = frozenset(_handle(text) for text in given.artifact) if given.artifact else None
    selection = kv_upkeep.Selection(
        artifacts=handles,
        revision=given.revision,
        boot=BootId(given.boot) if given.boot else None,
        since_ms=given.since,
        until_ms=given.until,
    )
    if given.conversation is None:
        return selection
    recorded = _recorded(given.data, given.conversation)
    return replace(selection, artifacts=recorded if handles is None else handles & recorded)


def _handle(text: str) -> ArtifactId:
    artifact = parse_artifact_id(text)
    if isinstance(artifact, str):
        return artifact
    raise StackError(f"{text[:80]!r} is no artifact: {artifact.detail}")


def _recorded(data: Path, conversation: str) -> frozenset[ArtifactId]:
    try:
        url = json.loads((data / "run" / "ready.json").read_text())["url"]
        key = json.loads((data / "keys.json").read_text())["operator_key"]
        answer = httpx.get(
            f"{url}/admin/conversations/{quote(conversation, safe='')}/artifacts",
            headers={"authorization": f"Bearer {key}"},
            timeout=30,
            trust_env=False,
        )
        answer.raise_for_status()
    except (OSError, httpx.HTTPError) as error:
        raise StackError(
            f"--conversation needs the running service of {data} ({error}): start it with `make up`"
        ) from error
    return frozenset(ArtifactId(each["artifact"]) for each in answer.json()["data"])


def _looked_at(given: argparse.Namespace) -> tuple[BlockStore, Contents]:
    address = given.store or given.data / "kv"
    try:
        store = open_store(str(address))
        store.require(make=False)
        return store, Catalog(store).look()
    except InvalidInput as error:
        raise StackError(f"--store {error}") from error
    except OSError as error:
        raise StackError(f"--store '{address}' cannot be read: {words(error)}") from error


def _shown(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
