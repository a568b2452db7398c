"""`everturn revision show | diff | verify | retire`: what a revision is made of, whether files or another are the same, and its end."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from service.domain.canonical import Scalar
from service.domain.errors import InvalidInput, NotFound
from service.domain.revision import Descriptor, Difference, flat_differences, parse_digest, shown
from stack import operator_api
from stack.commands.parsers import Commands

SOURCE = "PATH|DIGEST"
SOURCE_HELP = "a registered digest (rev_...), a file with a descriptor, or a checkpoint folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    title: str
    fields: Mapping[str, Scalar]
    whole: bool
    """Not where only files were at hand: an engine decides the rest."""


def add(commands: Commands) -> None:
    actions = commands.add_parser("revision", help="what a revision is made of").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    show = actions.add_parser("show", help="its fields, as a table")
    show.add_argument("source", metavar=SOURCE, help=SOURCE_HELP)
    show.add_argument("--json", action="store_true", help="whole values, as one JSON object")
    show.set_defaults(run=_show)
    diff = actions.add_parser("diff", help="the fields that differ; exit status 1 if any do")
    diff.add_argument("ours", metavar=SOURCE, help=SOURCE_HELP)
    diff.add_argument("theirs", metavar=SOURCE)
    diff.set_defaults(run=_diff)
    verify = actions.add_parser("verify", help="measure a checkpoint's files against a registered revision")
    verify.add_argument("path", type=Path, metavar="PATH", help="checkpoint folder")
    verify.add_argument("digest", metavar="DIGEST")
    verify.set_defaults(run=_verify)
    retire = actions.add_parser("retire", help="take all its engines out of the fleet")
    retire.add_argument("digest", metavar="DIGEST")
    retire.add_argument(
        "--force", action="store_true", help="also where conversations are stay_strict on it; lists them"
    )
    operator_api.add_arguments(retire)
    retire.set_defaults(run=_retire)
    for parser in (show, diff, verify):
        parser.add_argument(
            "--paranoid",
            action="store_true",
            help="hash every byte of weights, also of files known by their times",
        )
        operator_api.add_arguments(parser)


def _show(given: argparse.Namespace) -> int:
    known = _known(given.source, given)
    if given.json:
        print(json.dumps(dict(known.fields), indent=2))
        return 0
    print(known.title)
    width = max(map(len, known.fields))
    for name, value in known.fields.items():
        print(f"  {name:<{width}}  {shown(value)}")
    if not known.whole:
        print("  (the rest of a revision is measured by the engine that serves it)")
    return 0


def _diff(given: argparse.Namespace) -> int:
    return _compare(_known(given.ours, given), _known(given.theirs, given))


def _verify(given: argparse.Namespace) -> int:
    registered = _registered(given.digest, given)
    return _compare(_checkpoint(given.path, given), registered)


def _retire(given: argparse.Namespace) -> int:
    digest = parse_digest(given.digest, "DIGEST")
    with httpx.Client(trust_env=False) as http:
        retired = operator_api.fleet_client(given, http).retire_revision(digest, force=given.force)
    for engine in retired["engines"]:
        print(f"{engine} is gone")
    for conversation in retired.get("conversations", ()):
        print(f"{conversation} is stay_strict, and gets no answer")
    if not retired["engines"]:
        print(f"no engine serves {digest}")
    return 0


def _compare(ours: Known, theirs: Known) -> int:
    left, right = ours.fields, theirs.fields
    if not (ours.whole and theirs.whole):
        from workers.checkpoint_identity import decided_by_files  # noqa: PLC0415 transformers takes seconds

        left, right = decided_by_files(left), decided_by_files(right)
    found = flat_differences(left, right)
    if not found:
        print(f"same: {len(left)} fields of {ours.title} and {theirs.title}")
        return 0
    print(f"{len(found)} of {len(left.keys() | right.keys())} fields differ")
    for line in _table(ours.title, theirs.title, found):
        print(line)
    return 1


def _table(ours: str, theirs: str, found: tuple[Difference, ...]) -> list[str]:
    rows = [("field", ours, theirs), *((d.field, shown(d.ours), shown(d.theirs)) for d in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return [f"  {field:<{widths[0]}}  {left:<{widths[1]}}  {right}" for field, left, right in rows]


def _known(source: str, given: argparse.Namespace) -> Known:
    path = Path(source)
    if path.is_dir():
        return _checkpoint(path, given)
    if path.is_file():
        return _described(path)
    return _registered(source, given)


def _registered(source: str, given: argparse.Namespace) -> Known:
    digest = parse_digest(source, SOURCE)
    with httpx.Client(trust_env=False) as http:
        try:
            descriptor = operator_api.fleet_client(given, http).descriptor(digest)
        except NotFound as error:
            raise InvalidInput(
                f"{digest} is not registered: no engine has served it here.", SOURCE
            ) from error
    return Known(title=descriptor.digest, fields=descriptor.flat(), whole=True)


def _described(path: Path) -> Known:
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise InvalidInput(f"'{path}' is not JSON: give a file with a descriptor.", SOURCE) from error
    claimed = None
    if isinstance(document, dict) and "descriptor" in document:
        claimed, document = document.get("revision"), document["descriptor"]
    descriptor = Descriptor.from_json(document)
    if claimed not in (None, descriptor.digest):
        raise InvalidInput(f"'{path}' says {claimed}, but its descriptor is {descriptor.digest}.", SOURCE)
    return Known(title=descriptor.digest, fields=descriptor.flat(), whole=True)


def _checkpoint(path: Path, given: argparse.Namespace) -> Known:
    from workers.checkpoint_identity import measure_files  # noqa: PLC0415 transformers takes seconds

    fields = measure_files(path, given.data / "hashes", paranoid=given.paranoid)
    return Known(title=str(path), fields=fields, whole=False)
