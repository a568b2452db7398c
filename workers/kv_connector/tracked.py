"""What the scheduler side knows of one request between its hooks, and which requests tokens alone do not describe."""

from dataclasses import dataclass, replace
from typing import Any

from service.domain.artifact import Admitted, Manifest
from service.domain.evidence import Evidence, KvRequest, Refusal
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

    def refuse(self, refusal: Refusal) -> None:
        covered = self.manifest.token_count if self.manifest is not None else 0
        self.evidence = replace(self.evidence, refusal=refusal, refused_tokens=covered, loaded=None)


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


def apart_from_others(
    request: Any, tracked: Tracked | None, own: Descriptor | None
) -> tuple[str | None, ...]:
    """What its KV depends on beyond tokens, tenant and the engine's own revision; empty where on nothing.

    Its adapter; and what may hold KV of another revision is the request's alone.
    """
    contracted = request.request_id if tracked is not None and tracked.kv.contract is not None else None
    adapter = None
    if request.lora_request is not None:
        adapter = own.kv.adapter if own is not None else f"unknown {request.request_id}"
    if contracted is None and adapter is None:
        return ()
    return "contract", contracted, "adapter", adapter
