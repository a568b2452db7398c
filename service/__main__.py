"""`python -m service`: migrates, then serves; `python -m service bootstrap` makes a tenant and its keys."""

import argparse
import gc
import json
import os
import secrets
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

import uvicorn

from service import rollout_flow
from service.api.app import create_app
from service.domain.errors import EverturnError, InvalidInput, Unavailable
from service.domain.events import TenantId
from service.queue import Doorbell
from service.rollout_flow import Secrets
from service.settings import Settings, read_settings
from service.store.connection import make_engine
from service.store.migrate import upgrade

SECRET_BYTES = 32
# Longer than clients keep a connection for their next request (httpx and openai 5 s) and load balancers
# do (60 s): whoever closes first while the other writes makes that request fail.
IDLE_CONNECTION_S = 75


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m service", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("serve", help="migrate the database, then serve the API (the default)")
    keys = commands.add_parser(
        "bootstrap", help="make a tenant, its key, an operator's and one for engines, once"
    )
    keys.add_argument("--tenant", default="default", metavar="NAME")
    keys.add_argument(
        "--out", type=Path, metavar="FILE", help="keep them in FILE, readable by its owner only"
    )
    keys.add_argument(
        "--engine-key",
        type=Path,
        metavar="FILE",
        help="and the one for engines in FILE, for their --key-file",
    )
    chosen = parser.parse_args(arguments)
    try:
        settings = read_settings()
        if chosen.command == "bootstrap":
            bootstrap(settings, TenantId(chosen.tenant), chosen.out, chosen.engine_key)
        else:
            serve(settings)
    except EverturnError as error:
        sys.stderr.write(f"everturn: {error}\n")
        return 1
    return 0


def serve(settings: Settings) -> None:
    """Raises: Unavailable: the port is taken, or the database or its server is not fit."""
    listener = _listen(settings.host, settings.port)
    upgrade(settings.database_url.get_secret_value())
    doorbell = Doorbell(settings.broker_url.get_secret_value())
    config = uvicorn.Config(
        create_app(settings, ring=doorbell.ring, ring_turn=doorbell.ring_turn),
        log_level="info",
        ws="none",
        timeout_keep_alive=IDLE_CONNECTION_S,
        timeout_graceful_shutdown=int(settings.shutdown_s) + 1,
    )
    # What stands now stands to the end: looked through for garbage again and again, it would hold up whoever is being answered.
    gc.collect()
    gc.freeze()
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        doorbell.close()


def bootstrap(settings: Settings, tenant: TenantId, out: Path | None, engine_key: Path | None) -> None:
    url = settings.database_url.get_secret_value()
    upgrade(url)
    kept = _kept(out) if out is not None else None
    engine = make_engine(url, application_name="everturn-bootstrap", pool_size=1)
    try:
        with engine.begin() as conn:
            made = rollout_flow.bootstrap(
                conn, tenant=tenant, kept=kept, new_secret=new_secret, now=datetime.now(UTC)
            )
    finally:
        engine.dispose()
    told = {"tenant_key": made.tenant, "operator_key": made.operator, "engine_key": made.engine}
    document = json.dumps(told, indent=2) + "\n"
    if out is None:
        sys.stdout.write(document)
    elif made != kept:
        _keep(out, document)
    if engine_key is not None:
        _keep(engine_key, made.engine)


def new_secret() -> str:
    return "sk-everturn-" + secrets.token_urlsafe(SECRET_BYTES)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Where uvloop is not installed, only sockets that say they are TCP's send each write at once.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"Cannot listen on {host}:{port}: {error.strerror}. EVERTURN_HOST and EVERTURN_PORT set another place."
        ) from error
    return listener


def _kept(path: Path) -> Secrets | None:
    try:
        document = json.loads(path.read_text("utf-8"))
        # One of before engines had a key of their own holds none.
        engine = document.get("engine_key", "")
        return Secrets(tenant=document["tenant_key"], operator=document["operator_key"], engine=engine)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(
            f"{path} does not hold keys of Everturn: move it away, or name another file."
        ) from error


def _keep(path: Path, document: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(document)
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main())
