# ruff: noqa: ARG002  vLLM names the arguments of its hooks
"""The control: a connector that reads stored KV wherever the token ids match, as connectors keyed on tokens and shapes do.

It checks what they check (the handle exists, tokens and sizes fit) and not who computed it. Never in a fleet.
"""

import os
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
)

from service.domain.artifact import ArtifactId, Manifest, block_keys
from service.domain.evidence import KvRequest
from workers.kv_connector.identity import block_tensors, measure
from workers.kv_connector.paged import PagedBlocks
from workers.kv_connector.store_address import open_store


class Reads(KVConnectorMetadata):  # type: ignore[misc]
    def __init__(self, reads: dict[str, tuple[Manifest, list[int]]]) -> None:
        self.reads = reads


class UnguardedConnector(KVConnectorBase_V1):  # type: ignore[misc]
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        extra = self._kv_transfer_config.get_from_extra_config
        self._store, self._cache = open_store(extra("store", "")), Path(extra("hash_cache", ""))
        self._reads: dict[str, tuple[Manifest, list[int]]] = {}
        self._done: set[str] = set()

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        manifest = self._manifest(request)
        if manifest is None:
            return 0, False
        tokens = request.prompt_token_ids[: manifest.token_count]
        same = block_keys(manifest.revision, manifest.tenant, tokens, manifest.block_size)
        if same != tuple(block.key for block in manifest.blocks):
            return 0, False
        return manifest.token_count - num_computed_tokens, True

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        manifest = self._manifest(request)
        if num_external_tokens > 0 and manifest is not None:
            self._reads[request.request_id] = (manifest, blocks.get_block_ids()[0][: len(manifest.blocks)])

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        reads, self._reads = self._reads, {}
        return Reads(reads)

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        own, _ = measure(self._vllm_config, self._kv_cache_config, kv_caches, self._cache, environ=os.environ)
        self._paged = PagedBlocks(own, block_tensors(kv_caches), kv_caches)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        jobs = self._get_connector_metadata()
        if not isinstance(jobs, Reads):
            return
        buffer = self._paged.own_buffer()
        for request_id, (manifest, block_ids) in jobs.reads.items():
            for block, block_id in zip(manifest.blocks, block_ids, strict=True):
                self._store.read_block(manifest.tenant, manifest.revision, block.key, buffer.memory)
                self._paged.copy_in(buffer, block_id)
            self._done.add(request_id)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        done, self._done = self._done, set()
        return KVConnectorTransferResults(finished_recving=done)

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return

    def _manifest(self, request: Any) -> Manifest | None:
        kv = KvRequest.from_params(request.kv_transfer_params)
        if kv is None or kv.offer is None:
            return None
        return Manifest.from_bytes(self._store.read_manifest(kv.tenant, ArtifactId(kv.offer)))
