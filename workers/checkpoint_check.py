"""Is a folder a whole checkpoint? Asked before minutes are spent on loading it."""

import json
from pathlib import Path

from service.domain.errors import InvalidInput
from workers.kv_connector.weights import shards

LENGTH_BYTES = 8
LARGEST_HEADER_BYTES = 100 * 2**20  # safetensors' own limit


def require_whole(model: Path) -> None:
    """Raises:
    InvalidInput: naming the folder or file, what is wrong with it, and the way out.
    """
    for shard in shards(model):
        if (why := _broken(shard)) is not None:
            raise InvalidInput(
                f"'{shard}' is not a whole safetensors file ({why}): download it again.", "model"
            )
    config = model / "config.json"
    try:
        known = isinstance(json.loads(config.read_bytes()), dict)
    except FileNotFoundError as error:
        raise InvalidInput(
            f"'{model}' has no config.json: give the folder that holds the whole checkpoint.", "model"
        ) from error
    except ValueError:
        known = False
    if not known:
        raise InvalidInput(f"'{config}' is not a JSON object: download it again.", "model")


def _broken(shard: Path) -> str | None:
    """Compares its size with what its header says of it."""
    size = shard.stat().st_size
    with shard.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if not 0 < length <= min(LARGEST_HEADER_BYTES, size - LENGTH_BYTES):
            return "it has no readable header"
        try:
            tensors = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in tensors.items() if name != "__metadata__"]
            whole = LENGTH_BYTES + length + max(ends, default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return "it has no readable header"
    return None if size == whole else f"{size} bytes, where its header says {whole}"
