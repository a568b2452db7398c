import json
from typing import Any

import pytest

from service.domain.artifact import ArtifactId, BootId, MadeBy, RefusalReason
from service.domain.errors import InvalidInput
from service.domain.evidence import PARAMS_KEY, Evidence, KvRequest, Loaded, Published, Refusal
from tests.domain.descriptors import V12, V13

ARTIFACT = ArtifactId("kv_0123456789abcdef")
REQUEST = KvRequest(attempt="resp_1.1", tenant="acme", offer=ARTIFACT, publish=ARTIFACT)
WHOLE = Evidence(
    attempt="resp_1.1",
    boot=BootId("boot_1"),
    revision=V13.digest,
    prompt_tokens=40,
    local_tokens=8,
    loaded=Loaded(
        artifact=ARTIFACT, revision=V13.digest, producer=BootId("boot_0"), tokens=32, bytes=9, seconds=0.1
    ),
    refusal=Refusal(
        artifact=ARTIFACT,
        reason=RefusalReason.REVISION_MISMATCH,
        detail="",
        differing=("weights",),
        artifact_revision=V12.digest,
        artifact_producer=BootId("boot_0"),
    ),
    refused_tokens=64,
    published=Published(
        artifact=ARTIFACT,
        revision=V13.digest,
        producer=BootId("boot_1"),
        made_by=MadeBy.PREFILL,
        tokens=32,
        blocks=1,
        bytes=9,
        expires_ms=1,
        tip="00",
    ),
)


@pytest.mark.parametrize(
    "evidence",
    [
        WHOLE,
        Evidence(attempt="a", boot=BootId("b"), revision=None, prompt_tokens=1, publish_failure="disk full"),
    ],
)
def test_evidence_survives_json(evidence: Evidence) -> None:
    assert Evidence.from_json(json.loads(json.dumps(evidence.to_json()))) == evidence


def test_a_request_survives_the_engines_parameters() -> None:
    assert KvRequest.from_params(json.loads(json.dumps(REQUEST.to_params()))) == REQUEST


@pytest.mark.parametrize("params", [None, {}, {"do_remote_prefill": True}])
def test_a_request_that_does_not_speak_to_us_is_left_alone(params: dict[str, Any] | None) -> None:
    assert KvRequest.from_params(params) is None


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ("kv_1", PARAMS_KEY),
        ({"attempt": "a", "tenant": "t", "guard": False}, PARAMS_KEY),
        ({"tenant": "t"}, "attempt"),
        ({"attempt": "a", "tenant": ""}, "tenant"),
        ({"attempt": "a", "tenant": 7}, "tenant"),
    ],
)
def test_a_malformed_request_is_refused_whole(document: object, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        KvRequest.from_params({PARAMS_KEY: document})
    assert refused.value.param == field
