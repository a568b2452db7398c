"""A zygote whose engines are this file: they say what they were given, and sleep. `python sleeping_engine.py SOCKET`."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from workers import engine_zygote


def main() -> None:
    """As vLLM's API server would be called."""
    if "--fail" in sys.argv:
        raise RuntimeError("no such model")
    if "--stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen(["/bin/sleep", "60"])
    sys.stdout.write(f"{sys.argv[1:]} {sorted(os.environ)}\n")
    sys.stdout.flush()
    time.sleep(60)


if __name__ == "__main__":
    engine_zygote.IMPORTED_ONCE = ("json",)
    engine_zygote.API_SERVER = "sleeping_engine"  # not by way of `tests`, which adds to its environment
    engine_zygote.ORPHAN_PATIENCE_S = 0.3
    engine_zygote._fork_workers = lambda: None
    engine_zygote._nap_between_looks = lambda: None
    engine_zygote._catch_up_with_environment = lambda: None
    engine_zygote.main(Path(sys.argv[1]))
