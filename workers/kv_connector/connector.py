"""vLLM's KV connector: maps its hooks to the scheduler side and the worker side, and lets none of them raise."""

# ruff: noqa: ARG002 vLLM says what its hooks are given

import json
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from service.domain.artifact import BootId, Tensor
from service.domain.errors import EverturnError, InvalidInput
from service.domain.revision import Descriptor
from workers.kv_connector.adapters import FOLDER, Adapters
from workers.kv_connector.contract_folder import ContractFolder
from workers.kv_connector.counters import Counters
from workers.kv_connector.hash_root import HashRoot
from workers.kv_connector.hooks import never_raises
from workers.kv_connector.identity import block_tensors, measure
from workers.kv_connector.jobs import NO_JOBS
from workers.kv_connector.loading import Loader
from workers.kv_connector.messages import Measurement, StepJobs, StepOutcomes
from workers.kv_connector.model_in_memory import models_in_memory
from workers.kv_connector.paged import PagedBlocks
from workers.kv_connector.reports import Reports
from workers.kv_connector.saving import Saver
from workers.kv_connector.scheduler import SchedulerSide
from workers.kv_connector.store_address import open_store
from workers.kv_connector.supported import not_carried
from workers.kv_connector.watching import WatchPost, WatchReader, path_of
from workers.kv_connector.weights_watch import WeightsWatch
from workers.kv_connector.worker import STALLED_AFTER_S, Settled, WorkerSide

logger = logging.getLogger("vllm.everturn")


class EverturnConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Extra config: `store` (folder or s3://), `run_dir` (folder), `boot_id`, and `hash_cache` (folder, default `run_dir`),
    `contracts` (folder of the compatibility contracts that this engine honours; default: none),
    `stalled_after_s` (a transfer that moves no block for so long is given up; default 10).
    """

    _cache_hit_source = CacheHitSource.DISK

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        extra = self._kv_transfer_config.kv_connector_extra_config
        self._run_dir = Path(_setting(extra, "run_dir"))
        self._hash_cache = Path(extra.get("hash_cache") or self._run_dir)
        self._paranoid = extra.get("paranoid") is True
        self._weights_before_load = extra.get("weights")
        self._stalled_after_s = float(extra.get("stalled_after_s") or STALLED_AFTER_S)
        self._boot = BootId(_setting(extra, "boot_id"))
        self._store = open_store(_setting(extra, "store"))
        self._measurement: Measurement | None = None
        self._worker: WorkerSide | None = None
        self._post: WatchPost | None = None
        self._settled = Settled()
        self._idle = False
        if role == KVConnectorRole.SCHEDULER:
            self._reports = Reports(self._run_dir)
            self._reports.forget_identity()
            self._store.sweep()
            self._scheduler = SchedulerSide(
                store=self._store,
                reports=self._reports,
                root=HashRoot(secrets.token_hex(16)),
                counters=Counters(self._run_dir),
                boot=self._boot,
                unsupported=not_carried(vllm_config, kv_cache_config),
                kv_blocks=kv_cache_config.num_blocks,
                adapters=Adapters(self._run_dir / FOLDER),
                contracts=ContractFolder(Path(extra["contracts"]) if extra.get("contracts") else None),
            )

    # Identity: each rank measures, the scheduler side compares and publishes

    @never_raises(lambda self, error, *_: self._unmeasured(error))
    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        rank = self._vllm_config.parallel_config.rank
        post = WatchPost(path_of(self._run_dir, rank), WeightsWatch(models_in_memory(self._vllm_config)))
        self._post = post
        own, stops = measure(
            self._vllm_config,
            self._kv_cache_config,
            kv_caches,
            self._hash_cache,
            environ=os.environ,
            paranoid=self._paranoid,
        )
        if self._weights_before_load not in (None, own.kv.weights):
            raise InvalidInput(
                "The weights' files changed while they were loaded, so nobody knows which ones this engine has. "
                "Start it again once they rest.",
                "weights",
            )
        tensors = block_tensors(kv_caches)
        self._measurement = Measurement(
            descriptor=json.dumps(own.to_json(), sort_keys=True),
            tensors=json.dumps([asdict(tensor) for tensor in tensors]),
            error=None,
            stop_token_ids=stops,
            watched=True,
        )
        paged = PagedBlocks(own, tensors, kv_caches)
        self._worker = WorkerSide(
            paged,
            Loader(self._store, paged, post.look),
            Saver(self._store, paged, self._boot, post.look),
            stalled_after_s=self._stalled_after_s,
        )

    def _unmeasured(self, error: Exception) -> None:
        text = str(error) if isinstance(error, EverturnError) else f"{type(error).__name__}: {error}"
        self._measurement = Measurement(
            descriptor=None,
            tensors="[]",
            error=text,
            stop_token_ids=(),
            watched=self._post is not None,
        )

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return self._measurement

    @never_raises(lambda *_: None)
    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: Mapping[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        ranks = [metadata[rank] for rank in sorted(metadata)]
        try:
            first = _first_of(ranks)
            if first.watched:
                self._scheduler.watch(WatchReader(path_of(self._run_dir, 0)).changes)
            _require_agreement(ranks)
        except InvalidInput as error:
            self._stay_unmeasured(str(error))
            return
        own = Descriptor.from_json(json.loads(str(first.descriptor)))
        tensors = tuple(Tensor(**t | {"shape": tuple(t["shape"])}) for t in json.loads(first.tensors))
        self._store.put_descriptor(own)
        self._scheduler.identify(own, tensors)
        self._reports.write_identity(
            {
                "boot": self._boot,
                "revision": own.digest,
                "descriptor": own.to_json(),
                "stop_token_ids": list(first.stop_token_ids),
                "max_model_len": self._vllm_config.model_config.max_model_len,
            }
        )
        logger.info("Everturn serves %s", own.digest)

    def _stay_unmeasured(self, why: str) -> None:
        logger.error("Everturn refuses all stored KV, and saves none: %s", why)
        self._reports.write_identity({"boot": self._boot, "revision": None, "error": why})

    # Scheduler side

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a save that is lost is only a later miss

    def _broke(self, error: Exception, request: Any, *, waiting_for_load: bool = False) -> None:
        self._scheduler.broke(request, error, waiting_for_load=waiting_for_load)

    @never_raises(lambda self, error, request: self._broke(error, request))
    def on_new_request(self, request: Any) -> None:
        self._scheduler.arrived(request)

    @never_raises(lambda self, error, request, *_: (self._broke(error, request), (0, False))[1])
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        tokens = self._scheduler.matched(request, num_computed_tokens)
        return tokens, tokens > 0

    @never_raises(
        lambda self, error, request, _, num_external_tokens: self._broke(
            error, request, waiting_for_load=num_external_tokens > 0
        )
    )
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens > 0:
            self._scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    @never_raises(lambda *_: StepJobs(NO_JOBS))
    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return StepJobs(self._scheduler.jobs(), begins=bool(scheduler_output.scheduled_new_reqs))

    @never_raises(lambda *_: None)
    def update_connector_output(self, connector_output: Any) -> None:
        answer = connector_output.kv_connector_worker_meta
        if isinstance(answer, StepOutcomes):
            self._scheduler.learned(answer.outcomes)

    @never_raises(lambda self, error, request, *_: (self._broke(error, request), (False, None))[1])
    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self._scheduler.finished(request, block_ids[0] if len(block_ids) == 1 else []), None

    # Worker side

    @never_raises(lambda *_, **__: None)
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        step = self._get_connector_metadata()
        if isinstance(step, StepJobs) and self._worker is not None:
            self._worker.start(step.jobs)
        if isinstance(step, StepJobs) and step.begins and self._post is not None:
            self._post.glance()
        self._idle = forward_context.attn_metadata is None

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return

    @never_raises(lambda *_: KVConnectorTransferResults())
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        self._settled = self._worker.settled(idle=self._idle) if self._worker is not None else Settled()
        return KVConnectorTransferResults(
            finished_sending=set(self._settled.saved),
            finished_recving=set(self._settled.loaded),
            failed_recving=self._settled.refused,
        )

    def build_connector_worker_meta(self) -> StepOutcomes | None:
        outcomes = self._settled.outcomes
        return None if outcomes is None else StepOutcomes(outcomes)

    def shutdown(self) -> None:
        if self._post is not None:
            self._post.close()
        if self._worker is not None:
            self._worker.shutdown()


def _setting(extra: Mapping[str, Any], name: str) -> str:
    value = extra.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"'kv_connector_extra_config.{name}' is missing in --kv-transfer-config.", name)
    return value


def _first_of(ranks: Sequence[KVConnectorHandshakeMetadata]) -> Measurement:
    first = ranks[0] if ranks else None
    if not isinstance(first, Measurement):
        raise InvalidInput("no rank has measured itself", "revision")
    return first


def _require_agreement(ranks: Sequence[KVConnectorHandshakeMetadata]) -> None:
    """Raises: InvalidInput, with what each rank could not measure."""
    first = _first_of(ranks)
    if first.descriptor is None or any(rank != first for rank in ranks):
        errors = {r.error or "a rank measured otherwise" for r in ranks if isinstance(r, Measurement)}
        raise InvalidInput("; ".join(sorted(errors)), "revision")
