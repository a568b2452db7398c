"""How vLLM's other KV connectors name what they keep, which decides whether rooted block hashes protect it."""

from enum import StrEnum

OURS = "EverturnConnector"


class Naming(StrEnum):
    """By what a connector finds KV again."""

    BLOCK_HASH = "block hash"
    BLOCK_NUMBER = "block number"
    TOKENS = "tokens"
    NOTHING = "nothing"
    UNKNOWN = "unknown"


KNOWN = {
    "OffloadingConnector": Naming.BLOCK_HASH,
    "SimpleCPUOffloadConnector": Naming.BLOCK_HASH,
    "MooncakeStoreConnector": Naming.BLOCK_HASH,
    "NixlConnector": Naming.BLOCK_NUMBER,
    "NixlPullConnector": Naming.BLOCK_NUMBER,
    "NixlPushConnector": Naming.BLOCK_NUMBER,
    "MooncakeConnector": Naming.BLOCK_NUMBER,
    "MoRIIOConnector": Naming.BLOCK_NUMBER,
    "ExampleConnector": Naming.TOKENS,
    "FlexKVConnectorV1": Naming.TOKENS,
    "HF3FSKVConnector": Naming.TOKENS,
    "LMCacheConnectorV1": Naming.TOKENS,
    "DecodeBenchConnector": Naming.NOTHING,
}
"""By reading vLLM 0.32. LMCache's own hashes of tokens count as tokens: they hold neither revision nor tenant."""

WHAT_TO_DO = {
    Naming.BLOCK_NUMBER: "it fetches KV by block number from whatever engine a request names: pair engines of one revision only, or leave it out",
    Naming.TOKENS: "it finds KV by tokens alone, of any revision and tenant: leave it out, or take OffloadingConnector",
    Naming.NOTHING: "it makes KV up: leave it out",
    Naming.UNKNOWN: "nobody here knows how it names KV: leave it out, unless it goes by vLLM's block hashes",
}


def naming_of(connector: str) -> Naming:
    return KNOWN.get(connector, Naming.UNKNOWN)


def unprotected(connectors: list[str]) -> list[str]:
    """A line for each that may carry KV across revisions or tenants, though ours is in front of it."""
    return [
        f"{name} is NOT protected: {WHAT_TO_DO[naming]}"
        for name in connectors
        if name != OURS and (naming := naming_of(name)) is not Naming.BLOCK_HASH
    ]
