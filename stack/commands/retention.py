"""`everturn retention set | clear | show | run`: after how many days without a turn conversations are erased."""

import argparse
from collections.abc import Callable
from datetime import UTC, datetime

from service.domain.events import TenantId
from service.store import retention, tenants
from stack import database
from stack.caller import caller
from stack.commands.parsers import Commands
from workers.retention import judged_at, outcomes

LONGEST_DAYS = 36_500


def add(commands: Commands) -> None:
    parser = commands.add_parser("retention", help="how long conversations are kept after their last turn")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, run: Callable[[argparse.Namespace], int], about: str) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=about, description=about)
        database.add_argument(made)
        made.set_defaults(run=run)
        return made

    setting = action("set", _set, "erase a tenant's conversations so many days after their last turn")
    setting.add_argument("tenant")
    setting.add_argument("--days", type=_days, required=True)
    clearing = action("clear", _clear, "keep a tenant's conversations until somebody erases them")
    clearing.add_argument("tenant")
    action("show", _show, "list what is set")
    running = action("run", _run, "erase now what is too old; the worker's beat does so every hour")
    running.add_argument("--tenant", help="only this one's")
    running.add_argument("--dry-run", action="store_true", help="only list it")


def _days(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= LONGEST_DAYS:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of days from 1 to {LONGEST_DAYS}")
    return int(text)


def _set(given: argparse.Namespace) -> int:
    tenant, by = TenantId(given.tenant), caller()
    with database.connected(given) as conn:
        retention.set_retention(conn, tenant, after_days=given.days, by=by, now=datetime.now(UTC))
    print(
        f"conversations of {tenant} are erased {given.days} days after their last turn, from the next hour on; "
        "`everturn retention run --dry-run` lists those that are older now"
    )
    return 0


def _clear(given: argparse.Namespace) -> int:
    tenant = TenantId(given.tenant)
    with database.connected(given) as conn:
        tenants.find_tenant(conn, tenant)
        was_set = retention.clear_retention(conn, tenant)
    print(f"conversations of {tenant} are kept until somebody erases them{'' if was_set else ', as before'}")
    return 0


def _show(given: argparse.Namespace) -> int:
    with database.connected(given) as conn:
        rules = {rule.tenant: rule for rule in retention.list_retention(conn)}
        known = [one.tenant for one in tenants.list_tenants(conn)]
    for tenant in known:
        rule = rules.get(tenant)
        if rule is None:
            print(f"{tenant}: kept until somebody erases them")
        else:
            print(
                f"{tenant}: erased after {rule.after_days} days, set by {rule.set_by} at {rule.set_at:%Y-%m-%d %H:%M}"
            )
    return 0


def _run(given: argparse.Namespace) -> int:
    only = None if given.tenant is None else TenantId(given.tenant)
    erased = kept = 0
    would = "would be erased" if given.dry_run else "is erased"
    with database.engine(given) as engine:
        for outcome in outcomes(engine, judged_at(engine), dry_run=given.dry_run, tenant=only):
            found = outcome.overdue
            name = f"{outcome.rule.tenant} {found.conversation}, last turn {found.last_at:%Y-%m-%d %H:%M}"
            if outcome.kept is None:
                erased += 1
                print(f"{name}: {would}{_with(outcome.forks)}")
            else:
                kept += 1
                print(f"{name}: stays, {outcome.kept}")
    print(f"{erased} {'would be' if given.dry_run else 'are'} erased, {kept} stay")
    return 0


def _with(forks: tuple[str, ...]) -> str:
    return f", with its forks {', '.join(forks)}" if forks else ""
