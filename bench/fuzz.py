"""100,000 damaged manifests and as many damaged blocks: how many were taken for whole. `python -m bench.fuzz [INPUTS]`."""

import json
import sys
import tempfile
import time
from pathlib import Path

from tests.workers.kv_connector.test_fuzz import fuzz_blocks, fuzz_manifests


def main(inputs: int) -> int:
    taken = {}
    for name, fuzz in (("manifests", fuzz_manifests), ("blocks", fuzz_blocks)):
        with tempfile.TemporaryDirectory(prefix="everturn-fuzz-") as folder:
            taken[name] = fuzz(Path(folder), inputs, time.time_ns())
    print(json.dumps({"inputs": inputs, "taken": taken}))
    return 1 if any(taken.values()) else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
