"""What an engine says of its own protection, for `everturn guard check`, which believes only what it can try itself."""

from collections.abc import Mapping
from typing import Any

import vllm

from workers.kv_connector.counters import Count
from workers.kv_connector.versions import TESTED_VLLM, is_tested


def guard_facts(
    identity: Mapping[str, Any], vllm_config: Any, counters: Mapping[tuple[Count, str | None], float]
) -> dict[str, Any]:
    return {
        "boot": identity["boot"],
        "revision": identity["revision"],
        "error": identity.get("error"),
        "connectors": connectors_in_order(vllm_config.kv_transfer_config),
        "vllm": vllm.__version__,
        "vllm_is_tested": is_tested(vllm.__version__),
        "vllm_tested": list(TESTED_VLLM),
        "requests_rooted": int(counters.get((Count.REQUESTS, None), 0)),
    }


def connectors_in_order(kv_transfer: Any) -> list[str]:
    """As vLLM asks them; MultiConnector's children in its place."""
    if kv_transfer is None or kv_transfer.kv_connector is None:
        return []
    children = kv_transfer.kv_connector_extra_config.get("connectors")
    if kv_transfer.kv_connector != "MultiConnector" or not isinstance(children, list):
        return [str(kv_transfer.kv_connector)]
    return [str(child.get("kv_connector")) for child in children]
