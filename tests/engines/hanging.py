"""An engine whose KV store hangs for as long as a file says so, as a disk behind a network does."""

import time
from pathlib import Path
from typing import Any

from workers.kv_connector.connector import EverturnConnector

FLAG = "hangs"
"""In the engine's run folder."""
STALLED_AFTER_S = 1.0
CALLS = ("read_block", "put_block", "put_manifest")


class Hanging(EverturnConnector):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._stalled_after_s = STALLED_AFTER_S
        flag = self._run_dir / FLAG
        for name in CALLS:
            setattr(self._store, name, _waiting(flag, getattr(self._store, name)))


def _waiting(flag: Path, call: Any) -> Any:
    def waited(*args: Any) -> Any:
        while flag.exists():
            time.sleep(0.05)
        return call(*args)

    return waited
