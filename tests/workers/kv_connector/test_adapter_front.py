"""The front's part in adapters: whose revision a request is answered under, and what vLLM is told to load."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from service.domain.adapter import effective
from service.domain.errors import InvalidInput
from service.domain.revision import Descriptor
from tests.domain.descriptors import V12
from tests.workers.kv_connector.test_adapters import LoRA, write
from workers.kv_connector.adapter_front import AdapterFront
from workers.kv_connector.adapters import FOLDER, take_copy

OWN = {"boot": "boot_x", "revision": V12.digest, "descriptor": V12.to_json()}


def front_of(run_dir: Path, *described: list[Descriptor]) -> AdapterFront:
    """Descriptors that it makes known go to the list."""
    return AdapterFront(run_dir, described[0].append if described else lambda _: None)


def served(front: AdapterFront, loaded: dict[str, LoRA]) -> list[dict[str, str]]:
    return asyncio.run(front.served(OWN, loaded))


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def load(front: AdapterFront, loaded: dict[str, LoRA] | None = None, **fields: Any) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(asyncio.run(front.private_load(body(**fields), loaded or {})))
    return result


def test_a_request_for_an_adapters_name_is_answered_under_base_and_adapter(tmp_path: Path) -> None:
    copy = take_copy(write(tmp_path / "source"), tmp_path / FOLDER)
    loaded = {"style": LoRA(lora_path=str(copy))}
    front = front_of(tmp_path)
    found = front.identity(OWN, body(model="style"), loaded)
    assert found["revision"] == effective(V12, copy.name).digest
    assert found["descriptor"]["kv"]["adapter"] == copy.name
    assert found["boot"] == "boot_x"


@pytest.mark.parametrize("sent", [b"", b"[]", b"{}", b'{"model": 7}', b'{"model": "chat"}', b"\xff"])
def test_any_other_request_is_of_the_engines_own_revision(tmp_path: Path, sent: bytes) -> None:
    loaded = {"style": LoRA(lora_path=str(tmp_path))}
    assert front_of(tmp_path).identity(OWN, sent, loaded) == OWN


def test_under_an_adapter_that_nobody_vouches_for_the_engine_is_no_revision(tmp_path: Path) -> None:
    loaded = {"style": LoRA(lora_path=str(write(tmp_path / "source")))}
    found = front_of(tmp_path).identity(OWN, body(model="style"), loaded)
    assert found["revision"] is None
    assert "--adapter" in found["error"]


def test_what_is_loaded_at_run_time_is_a_private_copy_and_nothing_else_changes(tmp_path: Path) -> None:
    source = write(tmp_path / "source")
    told = load(front_of(tmp_path), lora_name="style", lora_path=str(source), other=1)
    copy = Path(told.pop("lora_path"))
    assert told == {"lora_name": "style", "other": 1}
    assert (copy.parent, (copy / "adapter_model.safetensors").read_bytes()) == (tmp_path / FOLDER, b"A")


def test_the_same_bytes_may_be_loaded_again_and_others_only_under_another_name(tmp_path: Path) -> None:
    front, source = front_of(tmp_path), write(tmp_path / "source")
    assert load(front, lora_name="style", lora_path=str(source)) == load(
        front, lora_name="style", lora_path=str(source)
    )
    write(tmp_path / "source", b"B")
    with pytest.raises(InvalidInput, match="has stood for") as refused:
        load(front, lora_name="style", lora_path=str(source))
    assert refused.value.param == "lora_name"
    load(front, lora_name="style-2", lora_path=str(source))


def test_a_name_that_the_engine_was_started_with_is_taken_too(tmp_path: Path) -> None:
    static = {"style": LoRA(lora_path=str(take_copy(write(tmp_path / "source"), tmp_path / FOLDER)))}
    write(tmp_path / "source", b"B")
    with pytest.raises(InvalidInput, match="has stood for"):
        load(front_of(tmp_path), static, lora_name="style", lora_path=str(tmp_path / "source"))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"lora_path": "x"}, "lora_name"),
        ({"lora_name": "", "lora_path": "x"}, "lora_name"),
        ({"lora_name": "a\x00b", "lora_path": "x"}, "lora_name"),
        ({"lora_name": "a" * 257, "lora_path": "x"}, "lora_name"),
        ({"lora_name": "a"}, "lora_path"),
        ({"lora_name": "a", "lora_path": 7}, "lora_path"),
        ({"lora_name": "a", "lora_path": "/nowhere"}, "adapter"),
        ({"lora_name": "a", "lora_path": "x", "load_inplace": True}, "load_inplace"),
    ],
    ids=str,
)
def test_a_call_that_cannot_be_vouched_for_is_refused_by_field(
    tmp_path: Path, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        load(front_of(tmp_path), **fields)
    assert refused.value.param == param


@pytest.mark.parametrize("sent", [b"", b"[]", b"\xff", b"nothing"])
def test_a_call_that_is_no_object_is_refused(tmp_path: Path, sent: bytes) -> None:
    with pytest.raises(InvalidInput):
        asyncio.run(front_of(tmp_path).private_load(sent, {}))


def test_each_adapter_is_told_with_the_revision_that_it_makes_of_the_engine(tmp_path: Path) -> None:
    one = take_copy(write(tmp_path / "source"), tmp_path / FOLDER)
    two = take_copy(write(tmp_path / "source", b"B"), tmp_path / FOLDER)
    known = list[Descriptor]()
    front = front_of(tmp_path, known)
    loaded = {
        "style": LoRA(lora_path=str(one)),
        "legal": LoRA(lora_path=str(two), lora_name="legal", lora_int_id=2),
        "law": LoRA(lora_path=str(two), lora_name="law", lora_int_id=3),
    }
    told = served(front, loaded)
    assert told == [
        {"model": name, "adapter": copy.name, "revision": effective(V12, copy.name).digest}
        for name, copy in (("style", one), ("legal", two), ("law", two))
    ]
    assert known == [effective(V12, one.name), effective(V12, two.name)], "once each"
    assert served(front, loaded) == told
    del loaded["style"]
    assert [adapter["model"] for adapter in served(front, loaded)] == ["legal", "law"]


def test_an_adapter_that_nobody_vouches_for_is_told_with_the_reason(tmp_path: Path) -> None:
    raw = {"raw": LoRA(lora_path=str(write(tmp_path / "new\nline")))}
    [told] = served(front_of(tmp_path), raw)
    assert set(told) == {"model", "reason"}
    assert "--adapter" in told["reason"]
    assert told["reason"].isprintable()


@pytest.mark.parametrize("name", ["", "a\x00b", "\ud800", "a" * 300])
def test_a_name_that_cannot_be_told_gets_no_revision(tmp_path: Path, name: str) -> None:
    lora = LoRA(lora_path=str(take_copy(write(tmp_path / "source"), tmp_path / FOLDER)))
    [told] = served(front_of(tmp_path), {name: lora})
    assert set(told) == {"model", "reason"}
    assert told["model"].isascii()
    assert json.loads(json.dumps(told)) == told


def test_names_that_are_told_alike_are_told_once(tmp_path: Path) -> None:
    loaded = {"a" * length: LoRA(lora_path=str(tmp_path)) for length in (300, 301)}
    assert len(served(front_of(tmp_path), loaded)) == 1
