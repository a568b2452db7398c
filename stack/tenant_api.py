"""Where a command finds a tenant's API and key: as given, else those of the stack on this machine."""

import argparse
import json
from pathlib import Path
from typing import Any

import httpx

from stack.errors import StackError
from stack.local_api import local_address

CONNECT_S = 10.0
SILENCE_S = 60.0
"""The service sends a comment every few seconds while there is nothing else to send."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--base-url",
        metavar="URL",
        help="of the API, with or without /v1 (default: the stack on this machine)",
    )
    parser.add_argument(
        "--key-file",
        type=Path,
        metavar="FILE",
        help="file with a tenant's key (default: the key of the stack on this machine)",
    )


def client(given: argparse.Namespace) -> httpx.Client:
    """Raises: StackError: no address, or no key."""
    return httpx.Client(
        base_url=_address(given),
        headers={"authorization": f"Bearer {_key(given)}"},
        timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S),
        trust_env=False,
    )


def checked(answer: httpx.Response) -> dict[str, Any]:
    """The JSON object of an answer.

    Raises:
        StackError: it is an error; in the service's words.
    """
    if answer.is_success:
        document: dict[str, Any] = answer.json()
        return document
    try:
        said = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        said = f"{answer.request.url} answered {answer.status_code}; is it an Everturn?"
    raise StackError(str(said))


def unreachable(http: httpx.Client, error: httpx.TransportError) -> StackError:
    return StackError(
        f"cannot reach {http.base_url}: {str(error) or type(error).__name__}; start the stack with `make up`, or give --base-url"
    )


def _address(given: argparse.Namespace) -> str:
    if given.base_url:
        return str(given.base_url).rstrip("/").removesuffix("/v1")
    return local_address(given.data, "--base-url")


def _key(given: argparse.Namespace) -> str:
    if given.key_file:
        try:
            key: str = given.key_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise StackError(
                f"--key-file {given.key_file} cannot be read: {why}; give the file with the secret that `everturn keys create` printed"
            ) from error
        if not key or not key.isascii() or not key.isprintable():
            raise StackError(
                f"{given.key_file} holds no key: put the secret that `everturn keys create` printed there"
            )
        return key
    try:
        return str(json.loads((given.data / "keys.json").read_text())["tenant_key"])
    except (OSError, ValueError, KeyError) as error:
        raise StackError(f"no tenant's key in {given.data / 'keys.json'}: give --key-file") from error
