"""The scheduler side of one engine without a vLLM, and requests as vLLM would hand it."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from service.domain.artifact import BootId, RefusalReason, Tensor
from service.domain.evidence import Evidence, Loaded, Refusal
from service.domain.revision import Descriptor
from tests.domain.descriptors import V12
from tests.workers.kv_connector.paged_fakes import SIZE, TENANT, TOKENS, side
from workers.kv_connector.counters import Counters
from workers.kv_connector.hash_root import HashRoot
from workers.kv_connector.jobs import LoadJob
from workers.kv_connector.reports import Reports, read_attempt
from workers.kv_connector.scheduler import SchedulerSide

HANDLE = "kv_0123456789"
PROMPT = [*TOKENS, 901, 902, 903]
KV_BLOCKS = 64


@dataclasses.dataclass
class Scene:
    root: Path
    scheduler: SchedulerSide

    def evidence(self, attempt: str = "turn.1") -> Evidence:
        found = read_attempt(self.root / "run", attempt)
        assert found is not None
        return Evidence.from_json(found[0])


def scheduler_side(root: Path, own: Descriptor | None = V12, unsupported: str | None = None) -> SchedulerSide:
    engine = side(root / "kv")
    scheduler = SchedulerSide(
        store=engine.store,
        reports=Reports(root / "run"),
        root=HashRoot("nonce"),
        counters=Counters(root / "run"),
        boot=BootId("boot_x"),
        unsupported=unsupported,
        kv_blocks=KV_BLOCKS,
    )
    if own is not None:
        tensors: tuple[Tensor, ...] = engine.paged.tensors
        scheduler.identify(own, tensors)
    return scheduler


def request(attempt: str = "turn.1", *, generated: int = 1, **kv: Any) -> Any:
    tokens = [*PROMPT, *range(500, 500 + generated)]
    return SimpleNamespace(
        request_id=f"r-{attempt}",
        kv_transfer_params={"everturn": {"attempt": attempt, "tenant": TENANT} | kv},
        prompt_token_ids=list(PROMPT),
        all_token_ids=tokens,
        num_prompt_tokens=len(PROMPT),
        num_tokens=len(tokens),
        num_computed_tokens=len(tokens),
        num_preemptions=0,
        status=SimpleNamespace(name="FINISHED_STOPPED"),
        lora_request=None,
        mm_features=[],
        prompt_embeds=None,
        pooling_params=None,
        resumable=False,
        cache_salt=None,
        block_hashes=["unsalted"],
        update_block_hashes=lambda: None,
    )


def loaded(job: LoadJob) -> Loaded:
    return Loaded(
        artifact=job.artifact,
        revision=job.revision,
        producer=job.producer,
        tokens=3 * SIZE,
        bytes=1,
        seconds=0.0,
    )


def refused(job: LoadJob) -> Refusal:
    return Refusal(artifact=job.artifact, reason=RefusalReason.BLOCK_MISSING, detail="gone")


def promised(scene: Scene, req: Any) -> LoadJob:
    tokens = scene.scheduler.matched(req, 0)
    scene.scheduler.allocated(req, list(range(10, 20)), tokens)
    (job,) = scene.scheduler.jobs().loads
    return job
