"""One rebuild in a process of its own, that a test can kill: `python -m tests.workers.rebuild_process DATABASE REBUILD CHUNK`."""

import sys

from pydantic import SecretStr

from service.settings import Settings
from workers.pool_process import PoolProcess
from workers.rebuild_runner import run_rebuild

if __name__ == "__main__":
    url, rebuild, chunk = sys.argv[1:]
    run_rebuild(
        PoolProcess.open(Settings(database_url=SecretStr(url), rebuild_chunk_tokens=int(chunk))), rebuild
    )
