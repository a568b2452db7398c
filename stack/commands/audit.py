"""`everturn audit conversation | sql | verify | checkpoint`: provenance, questions of one's own, and whether the record is whole."""

import argparse
import json
import sys
from pathlib import Path

from service.store.audit import read_conversation
from service.store.connection import AUDITOR_ROLE
from stack import audit_query, conversation_report, database, integrity
from stack.commands.parsers import Commands
from stack.errors import StackError


def add(commands: Commands) -> None:
    audit = commands.add_parser(
        "audit", help="who answered what from which bytes, and whether the record is whole"
    )
    actions = audit.add_subparsers(dest="action", required=True, metavar="ACTION")
    one = actions.add_parser("conversation", help="the provenance of every turn of a conversation")
    one.add_argument("conversation", metavar="ID", help="conv_...")
    one.add_argument("--format", choices=("text", "json", "html"), default="text")
    one.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")
    sql = actions.add_parser("sql", help="a question of your own to the views of schema audit, as an auditor")
    sql.add_argument("query", metavar="SELECT", help="one statement; - reads it from standard input")
    sql.add_argument("--format", choices=("table", "jsonl"), default="table")
    verify = actions.add_parser("verify", help="recompute every chain; status 1 where one is broken")
    verify.add_argument("--checkpoint", type=Path, metavar="FILE", help="also compare with these heads")
    verify.add_argument("--public-key", type=Path, metavar="FILE", help="default: that of --key, with .pub")
    checkpoint = actions.add_parser("checkpoint", help="sign the heads of all chains, to be kept elsewhere")
    checkpoint.add_argument("out", type=Path, metavar="FILE")
    for parser, run in ((one, _conversation), (sql, _sql), (verify, _verify), (checkpoint, _checkpoint)):
        database.add_argument(parser)
        parser.set_defaults(run=run)
    for parser in (verify, checkpoint):
        parser.add_argument(
            "--key",
            type=Path,
            metavar="FILE",
            help="signing key, made if missing (default: audit.key in --data)",
        )


def _conversation(given: argparse.Namespace) -> int:
    with database.connected(given, snapshot=True) as conn:
        found = read_conversation(conn, given.conversation)
    if given.format == "json":
        text = json.dumps(found, indent=2) + "\n"
    elif given.format == "html":
        text = conversation_report.html(given.conversation, found)
    else:
        text = conversation_report.text(given.conversation, found)
    if given.out is None:
        print(text, end="")
        return 0
    try:
        given.out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StackError(
            f"{given.out} cannot be written: {error.strerror}; name another with --out"
        ) from error
    print(f"wrote {given.out}")
    return 0


def _sql(given: argparse.Namespace) -> int:
    query = sys.stdin.read() if given.query == "-" else given.query
    with database.connected(given, snapshot=True, role=AUDITOR_ROLE) as conn:
        answer = audit_query.ask(conn, query)
    for line in answer.as_table() if given.format == "table" else answer.as_json_lines():
        print(line)
    return 0


def _verify(given: argparse.Namespace) -> int:
    key = _key(given)
    public_key = given.public_key or key.with_name(f"{key.name}.pub")
    with database.connected(given, snapshot=True) as conn:
        return integrity.verify_log(conn, against=given.checkpoint, public_key=public_key)


def _checkpoint(given: argparse.Namespace) -> int:
    with database.connected(given, snapshot=True) as conn:
        return integrity.sign_checkpoint(conn, out=given.out, key=_key(given))


def _key(given: argparse.Namespace) -> Path:
    path: Path = given.key or given.data / "audit.key"
    return path
