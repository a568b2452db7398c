"""Who gives a command on this machine, as the record names them."""

import getpass
import os


def caller() -> str:
    """By name; by number where the machine has no name for them, as in many a container."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # which of them depends on the version of Python
        return f"cli:uid {os.getuid()}"
