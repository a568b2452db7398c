"""Prints the SQL of all migrations, for linters and for those who migrate by hand: `python -m migrations.offline`."""

from pathlib import Path

from alembic import command
from alembic.config import Config


def main() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    command.upgrade(config, "head", sql=True)


if __name__ == "__main__":
    main()
