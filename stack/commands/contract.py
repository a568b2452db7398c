"""`everturn contract approve | list | give | revoke`: which revision may read another's KV, and until when."""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

import httpx

from service.domain.contract import Contract, parse_contract_id
from service.domain.errors import InvalidInput
from stack import operator_api
from stack.commands.parsers import Commands


def add(commands: Commands) -> None:
    group = commands.add_parser(
        "contract", help="let a revision read another's KV, field by field, until a day"
    )
    actions = group.add_subparsers(dest="action", required=True, metavar="ACTION")
    approve = actions.add_parser("approve", help="record it; prints its id")
    approve.add_argument("reader", help="rev_... that may read")
    approve.add_argument("producer", help="rev_... whose KV it is")
    approve.add_argument(
        "--waive", action="append", default=[], metavar="FIELD", help="that differs; may be given again"
    )
    approve.add_argument("--reason", required=True, help="how you know that it is harmless")
    approve.add_argument("--until", required=True, metavar="TIME", help="such as 2027-01-31T00:00:00Z")
    approve.add_argument("--by", help="who approves it (default: the key's id)")
    listed = actions.add_parser("list", help="all of them, and how each stands")
    give = actions.add_parser("give", help="write its terms into an engine's --contracts folder")
    give.add_argument("contract", help="ctr_...")
    give.add_argument("folder", type=Path)
    revoke = actions.add_parser("revoke", help="offer nothing under it any more")
    revoke.add_argument("contract", help="ctr_...")
    for parser, run in ((approve, _approve), (listed, _list), (give, _give), (revoke, _revoke)):
        operator_api.add_arguments(parser)
        parser.set_defaults(run=run)


def _approve(given: argparse.Namespace) -> int:
    terms = {
        "reader": given.reader,
        "producer": given.producer,
        "waived": given.waive,
        "reason": given.reason,
        "ends_at": given.until,
    }
    with httpx.Client(trust_env=False) as http:
        contract = operator_api.fleet_client(given, http).approve_contract(
            terms | ({"approved_by": given.by} if given.by else {})
        )
    print(contract.id)
    print("Engines honour it once it lies in their --contracts folder: `everturn contract give`.")
    return 0


def _list(given: argparse.Namespace) -> int:
    with httpx.Client(trust_env=False) as http:
        found = operator_api.fleet_client(given, http).contracts()
    for one in found:
        terms = Contract.from_json(one["terms"])
        print(f"{terms.id}  {_standing(terms, one['revoked_at'])}")
        print(f"  {terms.reader} reads {terms.producer}")
        print(f"  waived: {', '.join(terms.waived)}; approved by {terms.approved_by}: {terms.reason}")
    return 0


def _give(given: argparse.Namespace) -> int:
    wanted = parse_contract_id(given.contract)
    if not given.folder.is_dir():
        raise InvalidInput(f"'{given.folder}' is no folder: give the one of --contracts.", "folder")
    with httpx.Client(trust_env=False) as http:
        terms = operator_api.fleet_client(given, http).contract(wanted)
    if terms.id != wanted:
        raise InvalidInput(f"The API's terms are those of {terms.id}, not of {wanted}.", "contract")
    path = given.folder / f"{wanted}.json"
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(terms.to_json(), indent=1))
    temporary.replace(path)
    print(path)
    return 0


def _revoke(given: argparse.Namespace) -> int:
    wanted = parse_contract_id(given.contract)
    with httpx.Client(trust_env=False) as http:
        operator_api.fleet_client(given, http).revoke_contract(wanted)
    print(
        f"revoked; remove {wanted}.json from the --contracts folder of every engine, then they refuse it too"
    )
    return 0


def _standing(terms: Contract, revoked_at: str | None) -> str:
    if revoked_at is not None:
        return f"revoked {revoked_at}"
    ends = datetime.fromtimestamp(terms.ends_ms / 1000, UTC)
    return (
        f"{'ended' if ends <= datetime.now(UTC) else 'in force until'} {ends.isoformat(timespec='seconds')}"
    )
