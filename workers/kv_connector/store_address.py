"""Where a KV store lies, as a person says it: a folder, or `s3://BUCKET/PREFIX`."""

from pathlib import Path
from re import fullmatch

from service.domain.errors import InvalidInput
from workers.kv_connector.local_store import LocalStore
from workers.kv_connector.store import BlockStore

S3 = "s3://"
HELP = "KV store: a folder, or s3://BUCKET/PREFIX with AWS_* in the environment"


def full_address(given: str | Path) -> str:
    """As it can be handed to another process: a folder is made absolute. Raises: InvalidInput."""
    text = str(given)
    if text.startswith(S3):
        _bucket_and_prefix(text)
        return text.rstrip("/")
    if not text or "://" in text or "\0" in text:
        raise InvalidInput(f"{text[:80]!r} is no KV store: give a folder, or s3://BUCKET/PREFIX", "store")
    return str(Path(text).absolute())


def open_store(address: str) -> BlockStore:
    """Asks nothing of it yet. Raises: InvalidInput for what is no address, or needs a package that is missing."""
    full = full_address(address)
    if not full.startswith(S3):
        return LocalStore(Path(full))
    bucket, prefix = _bucket_and_prefix(full)
    try:
        from workers.kv_connector.object_store import ObjectStore  # noqa: PLC0415 engines on a folder lack obstore
    except ModuleNotFoundError as error:
        raise InvalidInput(f"'{full}' needs obstore: pip install obstore", "store") from error
    try:
        return ObjectStore(bucket, prefix)
    except OSError as error:
        raise InvalidInput(
            f"'{full}' cannot be used with this AWS_* environment: {error.strerror}", "store"
        ) from error


def _bucket_and_prefix(address: str) -> tuple[str, str]:
    bucket, _, prefix = address.removeprefix(S3).rstrip("/").partition("/")
    if not bucket:
        raise InvalidInput(f"{address[:80]!r} names no bucket: give s3://BUCKET/PREFIX", "store")
    if not fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", bucket):
        raise InvalidInput(
            f"{address[:80]!r} names a bucket that cannot be: a name has 3 to 63 of a-z, 0-9, '.' and '-'",
            "store",
        )
    if prefix and not fullmatch(
        r"(?!\.{1,2}(/|$))[A-Za-z0-9_.=-]+(/(?!\.{1,2}(/|$))[A-Za-z0-9_.=-]+)*", prefix
    ):
        raise InvalidInput(
            f"{address[:80]!r} has a prefix of other than letters, digits, '_', '-', '.', '=' and '/'",
            "store",
        )
    return bucket, prefix
