"""A real engine on a bucket: it publishes there, reuses what lies there, and serves on while nothing does."""

from pathlib import Path

import pytest

from service.domain.artifact import RefusalReason
from tests.engines.real import EngineHall, Reply, new_handle
from tests.workers.kv_connector.prompts import prompt
from tests.workers.kv_connector.s3 import HANGS, S3Server, environment, front_of
from workers.kv_connector.catalog import Catalog
from workers.kv_connector.store_address import open_store


@pytest.mark.engine
def test_engines_share_kv_through_a_bucket_and_live_through_its_loss(
    engine_hall: EngineHall, tiny_v12: Path, tiny_v13: Path, s3_server: S3Server, bucket: str
) -> None:
    address = f"s3://{bucket}/fleet"
    ids = prompt("object store")
    with front_of(s3_server.url) as front:
        engine = engine_hall.start(tiny_v12, address, env=environment(front.url))
        cold = engine.cold(ids)

        def same(reply: Reply) -> Reply:
            assert (reply.status, reply.tokens, reply.logprobs) == (200, cold.tokens, cold.logprobs)
            assert engine.is_healthy()
            return reply

        handle = new_handle()
        assert same(engine.cold(ids, publish=handle)).known.published is not None
        (listed,) = Catalog(open_store(address)).look().artifacts
        assert (listed.artifact, listed.revision) == (handle, engine.revision)
        loaded = same(engine.cold(ids, offer=handle)).known.loaded
        assert loaded is not None
        assert loaded.producer == engine.boot

        other = engine_hall.start(tiny_v13, address, env=environment(front.url))
        refused = other.cold(ids, offer=handle).known.refusal
        assert refused is not None
        assert refused.reason is RefusalReason.REVISION_MISMATCH
        assert refused.differing
        engine_hall.stop(other)

        front.fail(403)
        forbidden = same(engine.cold(ids, offer=handle, publish=new_handle())).known
        assert forbidden.refusal is not None
        assert forbidden.refusal.reason is RefusalReason.STORE_UNREACHABLE
        assert str(forbidden.publish_failure).startswith("the store refused: [Errno 13] 403 Forbidden")
        front.fail(HANGS)
        hanging = same(engine.cold(ids, offer=handle)).known
        assert hanging.refusal is not None
        assert hanging.refusal.reason is RefusalReason.STORE_UNREACHABLE
        front.goes_on.set()
        engine_hall.stop(engine)
