"""The keys of metadata that are instructions to the service, all under `everturn.`; those of requests are checked, never stored ones."""

from collections.abc import Mapping

from service.domain.errors import InvalidInput
from service.domain.events import OnUpgrade

OURS = "everturn."
ON_UPGRADE = "everturn.on_upgrade"
REVISION = "everturn.revision"
ON_DISCONNECT = "everturn.on_disconnect"
DEADLINE_S = "everturn.deadline_s"

OF_TURNS = (ON_UPGRADE, REVISION, ON_DISCONNECT, DEADLINE_S)
OF_CONVERSATIONS = (ON_UPGRADE,)


def check_turn_keys(metadata: Mapping[str, str]) -> None:
    """Raises: InvalidInput: a key of ours that there is none of; names it, and those that there are."""
    for name in _unknown(metadata, OF_TURNS):
        raise InvalidInput(
            f"Unknown metadata key: '{name}'. Keys that begin with '{OURS}' are Everturn's own; "
            f"of a response there are {', '.join(OF_TURNS)}.",
            name,
            "unknown_parameter",
        )


def conversation_policy(metadata: Mapping[str, str]) -> OnUpgrade | None:
    """That it asks for. Raises: InvalidInput: no such policy, or a key of ours that a conversation has none of."""
    for name in _unknown(metadata, OF_CONVERSATIONS):
        where = " It is for a response: send it with that." if name in OF_TURNS else ""
        raise InvalidInput(
            f"Unknown metadata key: '{name}'. Keys that begin with '{OURS}' are Everturn's own; "
            f"of a conversation there is {', '.join(OF_CONVERSATIONS)}.{where}",
            name,
            "unknown_parameter",
        )
    return policy_of(metadata.get(ON_UPGRADE))


def policy_of(given: str | None) -> OnUpgrade | None:
    """Raises: InvalidInput: there is no such policy."""
    if given is None:
        return None
    if given not in [policy.value for policy in OnUpgrade]:
        raise InvalidInput(
            f"'on_upgrade' must be one of {', '.join(OnUpgrade)}; not '{given}'.", "on_upgrade"
        )
    return OnUpgrade(given)


def _unknown(metadata: Mapping[str, str], known: tuple[str, ...]) -> list[str]:
    return [name for name in metadata if name.lower().startswith(OURS) and name not in known]
