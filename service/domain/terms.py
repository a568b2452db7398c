"""Under which terms a turn runs, where they are not the usual ones: waited for or not, and for how long."""

from dataclasses import dataclass
from enum import StrEnum


class OnDisconnect(StrEnum):
    """What becomes of a turn when nobody listens to it any more."""

    CONTINUE = "continue"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Under which a turn runs, where they are not the usual ones."""

    background: bool = False
    """A worker runs it, and nobody waits."""
    on_disconnect: OnDisconnect = OnDisconnect.CONTINUE
    deadline_s: float | None = None
    """From its acceptance on."""


USUAL = Terms()
