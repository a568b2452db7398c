"""What the scheduler side knows of one request between its hooks, and which requests tokens alone do not describe."""

from dataclasses import dataclass
from typing import Any

from service.domain.artifact import Admitted, Manifest
from service.domain.evidence import Evidence, KvRequest
from service.domain.revision import Descriptor


@dataclass(slots=True, kw_only=True)
class Tracked:
    kv: KvRequest
    evidence: Evidence
    own: Descriptor | None
    """What this request is computed under, its adapter included; None where that is not known."""
    unknown: str = ""
    """Why it is not."""
    manifest: Manifest | None = None
    admitted: Admitted | None = None
    decided: bool = False
    loading: bool = False
    saving: bool = False
    ended: bool = False
    load_refused: bool = False
    loaded_from_block: int = 0
    """Blocks [loaded_from_block, admitted.blocks) came from the store."""


def unsupported_request(request: Any) -> str | None:
    for name, present in (
        ("images, audio and video", bool(request.mm_features)),
        ("prompt embeddings", request.prompt_embeds is not None or request.prompt_token_ids is None),
        ("pooling", request.pooling_params is not None),
        ("streamed input", request.resumable),
    ):
        if present:
            return f"requests with {name} are not carried"
    return None


def divide_prefix_cache(request: Any, tracked: Tracked | None, own: Descriptor | None) -> None:
    """In the engine's own prefix cache too: by adapter; and what may hold KV of another revision is the request's alone."""
    if tracked is not None and tracked.kv.contract is not None:
        request.cache_salt = f"contract {request.request_id} {request.cache_salt or ''}"
    if request.lora_request is not None:
        adapter = own.kv.adapter if own is not None else f"unknown {request.request_id}"
        request.cache_salt = f"adapter {adapter} {request.cache_salt or ''}"
