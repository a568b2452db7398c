"""A rebuild leaves alone what it put into the store a moment ago, and never takes it for there where it is not."""

import time
from collections import Counter

import pytest

from service.domain.artifact import Block, MadeBy, RefusalReason
from service.domain.evidence import Loaded, Published, Refusal
from tests.workers.kv_connector.paged_fakes import TENANT, Side, load_job, manifest_of, save, side
from tests.workers.kv_connector.stores import Hands
from workers.kv_connector.recent_blocks import KNOWN_FOR_S, MOST, RecentBlocks
from workers.kv_connector.store import BlockStore, block_name

FIRST, SECOND = "kv_first0000", "kv_second000"


@pytest.fixture
def calls(block_store: BlockStore, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What the store is asked for, block by block."""
    counted = Counter[str]()

    def count(name: str) -> None:
        works = getattr(block_store, name)

        def counting(*given: object) -> object:
            counted[name] += 1
            return works(*given)

        monkeypatch.setattr(block_store, name, counting)

    for name in ("put_block", "read_block", "keep_block"):
        count(name)
    return counted


def later(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + seconds)


def loaded(store: BlockStore, handle: str) -> Loaded | Refusal:
    reader = side(store, seed=9)
    return reader.loader.load(load_job(manifest_of(reader, handle)), None)


def published(writer: Side, handle: str) -> None:
    assert isinstance(save(writer, handle), Published)


def test_what_was_just_put_is_kept_and_neither_written_nor_read_again(
    block_store: BlockStore, calls: Counter[str]
) -> None:
    writer = side(block_store)
    published(writer, FIRST)
    calls.clear()
    published(writer, SECOND)
    assert calls == {"keep_block": 3}
    assert manifest_of(writer, SECOND).blocks == manifest_of(writer, FIRST).blocks
    assert isinstance(loaded(block_store, SECOND), Loaded)


def test_what_was_found_standing_and_whole_is_known_too(block_store: BlockStore, calls: Counter[str]) -> None:
    published(side(block_store, seed=1), FIRST)
    writer = side(block_store)
    published(writer, SECOND)
    assert calls["read_block"] == 3
    calls.clear()
    published(writer, "kv_third0000")
    assert calls == {"keep_block": 3}
    assert isinstance(loaded(block_store, "kv_third0000"), Loaded)


def test_what_another_engine_put_is_looked_at(block_store: BlockStore, calls: Counter[str]) -> None:
    published(side(block_store), FIRST)
    calls.clear()
    published(side(block_store), SECOND)
    assert calls["read_block"] == 3


def test_what_another_rebuild_put_is_looked_at_and_mended_where_it_was_damaged(
    block_store: BlockStore, calls: Counter[str], hands: Hands
) -> None:
    writer = side(block_store)
    published(writer, FIRST)
    damaged = block_name(TENANT, writer.paged.own.digest, manifest_of(writer, FIRST).blocks[0].key)
    data = hands.read(damaged)
    hands.write(damaged, data[:-1] + bytes([data[-1] ^ 1]))
    calls.clear()
    assert isinstance(save(writer, SECOND, attempt="rb_b.1"), Published)
    assert calls["read_block"] == 3
    assert isinstance(loaded(block_store, SECOND), Loaded)


def test_one_that_has_gone_meanwhile_is_put_again(block_store: BlockStore, calls: Counter[str]) -> None:
    writer = side(block_store)
    published(writer, FIRST)
    gone = manifest_of(writer, FIRST).blocks[1]
    block_store.remove(block_name(TENANT, writer.paged.own.digest, gone.key))
    calls.clear()
    published(writer, SECOND)
    assert (calls["put_block"], calls["read_block"]) == (1, 0)
    assert isinstance(loaded(block_store, SECOND), Loaded)


def test_one_that_was_damaged_meanwhile_is_refused_by_its_reader_and_then_put_again(
    block_store: BlockStore, hands: Hands
) -> None:
    writer = side(block_store)
    published(writer, FIRST)
    damaged = block_name(TENANT, writer.paged.own.digest, manifest_of(writer, FIRST).blocks[0].key)
    data = hands.read(damaged)
    hands.write(damaged, data[:-1] + bytes([data[-1] ^ 1]))
    published(writer, SECOND)
    refused = loaded(block_store, SECOND)
    assert isinstance(refused, Refusal)
    assert refused.reason is RefusalReason.CHECKSUM_MISMATCH
    published(writer, "kv_third0000")
    assert isinstance(loaded(block_store, "kv_third0000"), Loaded)


def test_after_a_while_it_is_looked_at_again(
    block_store: BlockStore, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector may have taken it by then, and another engine have put its own."""
    writer = side(block_store)
    published(writer, FIRST)
    later(KNOWN_FOR_S, monkeypatch)
    calls.clear()
    published(writer, SECOND)
    assert calls["read_block"] == 3


def test_keeping_it_makes_it_recent_again(
    block_store: BlockStore, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = side(block_store)
    published(writer, FIRST)
    for handle in (SECOND, "kv_third0000"):
        later(KNOWN_FOR_S * 0.6, monkeypatch)
        calls.clear()
        published(writer, handle)
        assert calls == {"keep_block": 3}


def test_only_so_many_are_known() -> None:
    recent = RecentBlocks()
    for number in range(MOST + 1):
        known = Block(key=str(number), checksum="00", size=1), MadeBy.PREFILL
        recent.add(str(number), "rb_a.1", known, time.monotonic())
    assert recent.find("0", "rb_a.1") is None
    assert recent.find("1", "rb_a.1") is not None
    assert recent.find(str(MOST), "rb_a.1") is not None
