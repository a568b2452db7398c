"""A simulated vLLM: the connector's own scheduler side decides on every offer; the worker side and the model are simulated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any, cast

from service.domain.artifact import (
    Block,
    BootId,
    MadeBy,
    Manifest,
    RefusalReason,
    Tensor,
    pack_tokens,
)
from service.domain.evidence import Evidence, KvRequest, Loaded, Published, Refusal
from service.domain.revision import Descriptor
from tests.engines.simulated import BLOCK
from tests.engines.simulated_text import STOP
from tests.simulation import clock, model
from tests.simulation.kv_store import KvStore
from workers.kv_connector.block_file import BlockHeader, checksum
from workers.kv_connector.hash_root import HashRoot
from workers.kv_connector.jobs import LoadJob, Outcomes, SaveJob
from workers.kv_connector.scheduler import SchedulerSide

TENSORS = (Tensor(name="layer", dtype="float32", shape=(2, BLOCK, 4)),)
KV_BLOCKS = 10_000
MANY_CACHED = 4_000


class Status(StrEnum):
    RUNNING = "running"
    FINISHED_STOPPED = "stop"
    FINISHED_LENGTH_CAPPED = "length"
    FINISHED_ABORTED = "abort"


@dataclass(slots=True)
class Request:
    """What the scheduler side reads of vLLM's."""

    request_id: str
    prompt_token_ids: Sequence[int]
    kv_transfer_params: dict[str, Any]
    cache_salt: str | None
    all_token_ids: tuple[int, ...] = ()
    status: Status = Status.RUNNING
    num_preemptions: int = 0
    lora_request: None = None
    mm_features: tuple[()] = ()
    prompt_embeds: None = None
    pooling_params: None = None
    resumable: bool = False
    block_hashes: list[bytes] = field(default_factory=list)
    kv: list[bytes] = field(default_factory=list)
    """Of its whole blocks, as this engine has it."""

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    @property
    def num_computed_tokens(self) -> int:
        return len(self.all_token_ids) - 1

    def update_block_hashes(self) -> None:
        """The salt is in the first, and each in the next."""
        parent = sha256(str(self.cache_salt).encode()).digest()
        tokens = self.all_token_ids
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            parent = sha256(parent + pack_tokens(tokens[start : start + BLOCK])).digest()
            self.block_hashes.append(parent)


class Reports:
    """In the place of files in the run folder."""

    def __init__(self) -> None:
        self.evidence: dict[str, Evidence] = {}
        self.publishing: set[str] = set()

    def write_identity(self, identity: dict[str, Any]) -> None:
        """Asked for by nobody here."""

    def write_attempt(self, evidence: Evidence, *, publishing: bool) -> None:
        self.evidence[evidence.attempt] = evidence
        (self.publishing.add if publishing else self.publishing.discard)(evidence.attempt)


class Uncounted:
    """In the place of counters in shared memory."""

    def add(self, *_: object, **__: object) -> None: ...

    def add_hit(self, loaded: Loaded) -> None: ...

    def add_publication(self, published: Published) -> None: ...


class LoadFailed(Exception): ...


class Engine:
    def __init__(self, own: Descriptor, boot: BootId, store: KvStore) -> None:
        self.own = own
        self.revision = own.digest
        self.boot = boot
        self.store = store
        self.reports = Reports()
        self.skew_ms = 0
        """By which its clock is wrong."""
        self._cache: dict[bytes, bytes] = {}
        self.scheduler = SchedulerSide(
            store=cast("Any", store),
            reports=cast("Any", self.reports),
            root=HashRoot(boot),
            counters=cast("Any", Uncounted()),
            boot=boot,
            unsupported=None,
            kv_blocks=KV_BLOCKS,
        )
        self.scheduler.identify(own, TENSORS)

    def begin(self, body: dict[str, Any]) -> tuple[Request, tuple[int, ...]]:
        """Prefill: the request, and its answer as far as it may go. Raises: LoadFailed."""
        prompt = tuple(body["token_ids"])
        request = Request(
            request_id=body["request_id"],
            prompt_token_ids=prompt,
            kv_transfer_params=body["kv_transfer_params"],
            cache_salt=body["cache_salt"],
            all_token_ids=prompt,
        )
        kv = KvRequest.from_params(request.kv_transfer_params)
        assert kv is not None
        self._ask(lambda: self.scheduler.arrived(request))
        known = self._cached(request)
        promised = self._ask(lambda: self.scheduler.matched(request, len(known) * BLOCK))
        if promised:
            known = [*known, *self._load(request, len(known), promised)]
        request.kv = model.prefill(self.own, prompt, known)
        self._remember(request, request.kv)
        output = model.answer(self.own, prompt, request.kv)[: body["sampling_params"]["max_tokens"]]
        request.all_token_ids = (*prompt, *output)
        return request, output

    def finish(self, request: Request, status: Status) -> SaveJob | None:
        request.status = status
        blocks = len(request.all_token_ids) // BLOCK
        self._ask(lambda: self.scheduler.finished(request, range(blocks)))
        return next(iter(self.scheduler.jobs().saves), None)

    def save(self, request: Request, job: SaveJob) -> None:
        """Blocks, and the manifest last; in its own time."""
        try:
            outcome: Published | str = self._written(request, job)
        except OSError as error:
            outcome = str(error)
        self._ask(lambda: self.scheduler.learned(Outcomes(loaded={}, saved={request.request_id: outcome})))

    def _cached(self, request: Request) -> list[bytes]:
        """Of the engine's own prefix cache, as vLLM keeps it: by block hash, and never the whole prompt."""
        most = (request.num_prompt_tokens - 1) // BLOCK
        found: list[bytes] = []
        for name in request.block_hashes[:most]:
            if name not in self._cache:
                break
            found.append(self._cache[name])
        return found

    def _remember(self, request: Request, blocks: Sequence[bytes]) -> None:
        if len(self._cache) > MANY_CACHED:
            self._cache.clear()
        self._cache.update(zip(request.block_hashes, blocks, strict=False))

    def _load(self, request: Request, have: int, promised: int) -> list[bytes]:
        ids = range(have + promised // BLOCK)
        self._ask(lambda: self.scheduler.allocated(request, ids, promised))
        (job,) = self.scheduler.jobs().loads
        outcome, blocks = self._read(job)
        outcomes = Outcomes(loaded={request.request_id: outcome}, saved={})
        self._ask(lambda: self.scheduler.learned(outcomes))
        if isinstance(outcome, Refusal):
            self.finish(request, Status.FINISHED_ABORTED)
            raise LoadFailed(outcome.detail)
        return blocks

    def _read(self, job: LoadJob) -> tuple[Loaded | Refusal, list[bytes]]:
        """The worker side's own check of what stands beside the bytes, as workers.kv_connector.loading has it."""
        blocks: list[bytes] = []
        for block in job.blocks:
            try:
                header, payload = self.store.read_block(job.tenant, job.revision, block.key)
            except FileNotFoundError:
                return refusal(job, RefusalReason.BLOCK_MISSING, block.key), []
            except OSError as error:
                return refusal(job, RefusalReason.STORE_UNREACHABLE, str(error)), []
            if (reason := self.unfit(job, block, header, payload)) is not None:
                self.store.quarantine(job.tenant, job.revision, block.key)
                return refusal(job, reason, block.key), []
            blocks.append(payload)
        loaded = Loaded(
            artifact=job.artifact,
            revision=job.revision,
            producer=job.producer,
            tokens=len(blocks) * BLOCK,
            bytes=sum(map(len, blocks)),
            seconds=0.001,
        )
        return loaded, blocks

    def unfit(self, job: LoadJob, block: Block, header: BlockHeader, payload: bytes) -> RefusalReason | None:
        if job.revision != self.revision:
            return RefusalReason.REVISION_MISMATCH
        if checksum(payload).hexdigest() != header.checksum:
            return RefusalReason.CHECKSUM_MISMATCH
        if header.revision != job.revision:
            return RefusalReason.REVISION_MISMATCH
        if header.tenant != job.tenant:
            return RefusalReason.TENANT_MISMATCH
        if header.key != block.key or header.tensors != TENSORS:
            return RefusalReason.BLOCK_UNREADABLE
        return RefusalReason.CHECKSUM_MISMATCH if header.checksum != block.checksum else None

    def _written(self, request: Request, job: SaveJob) -> Published:
        tokens = request.all_token_ids
        kv = model.prefill(self.own, tokens[: len(job.blocks) * BLOCK], request.kv)
        blocks = []
        for index, one in enumerate(job.blocks):
            header = BlockHeader(
                key=one.key,
                tenant=job.tenant,
                revision=self.revision,
                producer=self.boot,
                made_by=one.made_by,
                tensors=TENSORS,
                checksum=checksum(kv[index]).hexdigest(),
                size=len(kv[index]),
            )
            name = (job.tenant, self.revision, one.key)
            self.store.covered.setdefault(name, tokens[: (index + 1) * BLOCK])
            standing = self._put(header, kv[index])
            blocks.append(Block(key=one.key, checksum=standing.checksum, size=standing.size))
        return self._published(job, tuple(blocks))

    def _put(self, header: BlockHeader, payload: bytes) -> BlockHeader:
        """What stands under its name already is taken, if it is whole; else put aside, and written anew."""
        if self.store.put_block(header, payload):
            return header
        standing, bytes_there = self.store.read_block(header.tenant, header.revision, header.key)
        if standing.is_same_block(header) and checksum(bytes_there).hexdigest() == standing.checksum:
            return standing
        self.store.quarantine(header.tenant, header.revision, header.key)
        self.store.put_block(header, payload)
        return header

    def _published(self, job: SaveJob, blocks: tuple[Block, ...]) -> Published:
        now_ms = int(clock.utc_now().timestamp() * 1000) + self.skew_ms
        manifest = Manifest(
            artifact=job.artifact,
            tenant=job.tenant,
            descriptor=self.own,
            producer=self.boot,
            attempt=job.attempt,
            made_by=MadeBy.PREFILL,
            created_ms=now_ms,
            expires_ms=now_ms + job.lease_s * 1000,
            token_count=len(blocks) * BLOCK,
            block_size=BLOCK,
            tensors=TENSORS,
            blocks=blocks,
        )
        if not self.store.put_manifest(manifest):
            raise FileExistsError(job.artifact)
        return Published(
            artifact=job.artifact,
            revision=self.revision,
            producer=self.boot,
            made_by=manifest.made_by,
            tokens=manifest.token_count,
            blocks=len(blocks),
            bytes=sum(block.size for block in blocks),
            expires_ms=manifest.expires_ms,
            tip=blocks[-1].key,
        )

    def _ask(self, hook: Callable[[], Any]) -> Any:
        """By this engine's own clock."""
        clock.Time.skew_ms = self.skew_ms
        try:
            return hook()
        finally:
            clock.Time.skew_ms = 0


def refusal(job: LoadJob, reason: RefusalReason, detail: str) -> Refusal:
    return Refusal(
        artifact=job.artifact,
        reason=reason,
        detail=detail,
        artifact_revision=job.revision,
        artifact_producer=job.producer,
    )


def reason_to_finish(output: Sequence[int]) -> Status:
    return Status.FINISHED_STOPPED if output[-1] == STOP else Status.FINISHED_LENGTH_CAPPED
