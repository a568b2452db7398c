"""What the scheduler side knows of one request between its hooks, and which requests tokens alone do not describe."""

from dataclasses import dataclass
from typing import Any

from service.domain.artifact import Admitted, Manifest
from service.domain.evidence import Evidence, KvRequest


@dataclass(slots=True, kw_only=True)
class Tracked:
    kv: KvRequest
    evidence: Evidence
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
        ("adapters", request.lora_request is not None),
        ("images, audio and video", bool(request.mm_features)),
        ("prompt embeddings", request.prompt_embeds is not None or request.prompt_token_ids is None),
        ("pooling", request.pooling_params is not None),
        ("streamed input", request.resumable),
    ):
        if present:
            return f"requests with {name} are not carried"
    return None
