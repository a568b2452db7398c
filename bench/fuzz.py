"""100,000 inputs for each reader of stored KV, damaged or forged: how many were taken for what they are not. `make fuzz`, or `python -m bench.fuzz INPUTS`.

Damaged: bytes, as disks and networks damage them. Forged: a value changed and the seal made anew. Drawn: forged likewise, by hypothesis, which
raises what it finds.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.workers.kv_connector.test_fuzz import (
    check_headers,
    check_manifests,
    fuzz_blocks,
    fuzz_manifests,
    fuzz_sealed_headers,
    fuzz_sealed_manifests,
    stored_manifest,
)

COUNTED: dict[str, Callable[[Path, int, int], int]] = {
    "damaged manifests": fuzz_manifests,
    "damaged blocks": fuzz_blocks,
    "forged manifests": fuzz_sealed_manifests,
    "forged block headers": fuzz_sealed_headers,
}
DRAWN: dict[str, Callable[[Path, int], None]] = {
    "drawn manifests": lambda folder, inputs: check_manifests(*stored_manifest(folder), inputs),
    "drawn block headers": lambda _, inputs: check_headers(inputs),
}


def main(inputs: int) -> int:
    taken, seconds = {}, {}
    for name in (*COUNTED, *DRAWN):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="everturn-fuzz-") as folder:
            taken[name] = _taken(name, Path(folder), inputs)
        seconds[name] = round(time.monotonic() - began)
        print(f"{name}: {taken[name]} of {inputs} taken, {seconds[name]} s", flush=True)
    print(json.dumps({"inputs": inputs, "taken": taken, "seconds": seconds}))
    return 1 if any(taken.values()) else 0


def _taken(name: str, folder: Path, inputs: int) -> int:
    if name in COUNTED:
        return COUNTED[name](folder, inputs, time.time_ns())
    DRAWN[name](folder, inputs)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
