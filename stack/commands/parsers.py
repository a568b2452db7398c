"""What a command module is given to add itself to: a parser for each command, with `run` set to what carries it out.

`run` takes the parsed arguments and returns the exit status; it may raise StackError or EverturnError, printed as one line.
"""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 argparse gives it no other name
else:
    Commands = argparse.Action
