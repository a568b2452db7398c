"""The contracts that this engine's operator has given it: files in a folder, which nothing that offers KV can write."""

import json
from pathlib import Path

from service.domain.artifact import RefusalReason, Refused
from service.domain.contract import Contract, parse_contract_id
from service.domain.errors import InvalidInput

MOST_BYTES = 1 << 16


class ContractFolder:
    def __init__(self, folder: Path | None) -> None:
        """None: this engine honours no contract at all."""
        self._folder = folder

    def find(self, named: object) -> Contract | Refused:
        """Read at each use: a file that is taken away permits nothing any more."""
        if self._folder is None:
            return _refused(
                f"{str(named)[:80]} is named, but this engine was given no contracts (--contracts)"
            )
        try:
            wanted = parse_contract_id(named)
            with (self._folder / f"{wanted}.json").open("rb") as file:
                data = file.read(MOST_BYTES + 1)
            if len(data) > MOST_BYTES:
                return _refused(f"{wanted} is larger than {MOST_BYTES} bytes")
            contract = Contract.from_json(json.loads(data))
        except FileNotFoundError:
            return _refused(f"{wanted} is not among the contracts that this engine was given")
        except (OSError, ValueError, RecursionError, InvalidInput) as error:
            return _refused(f"{str(named)[:80]} cannot be read: {error}")
        if contract.id != wanted:
            return _refused(f"{wanted} holds other terms than its name says")
        return contract


def _refused(detail: str) -> Refused:
    return Refused(reason=RefusalReason.CONTRACT_INVALID, detail=f"contract {detail}")
