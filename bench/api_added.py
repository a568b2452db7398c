"""What the service adds to one real vLLM engine, in time and in what is kept, and what OGX adds to the same."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.api_compare import DIRECT, Round, alternate, direct, figures, through, turn
from bench.api_idle import Pace
from bench.api_kept import kept_by_ogx, kept_by_service
from bench.api_load import stream_response
from bench.api_ogx import MODEL, PACKAGES, NotHad, Ogx, running_ogx
from bench.api_service import BenchService
from bench.api_steps import TracedService
from bench.engine import zygote
from stack.postgres import EmbeddedPostgres

OGX = "ogx"
OGX_EVERY = 2
"""Half as many rounds as the others have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    figures: dict[str, Any]
    pace: Pace
    """Of the engine, asked directly by one."""


def added_figures(
    service: BenchService,
    traced: TracedService,
    server: EmbeddedPostgres,
    folder: Path,
    *,
    model: Path,
    streams: Sequence[int],
    rounds: int,
) -> Compared:
    levels: dict[str, dict[str, float]] = {}
    seen: dict[int, dict[str, dict[int, Round]]] = {}
    with ExitStack() as stack:
        mother = stack.enter_context(zygote(folder))
        engine = stack.enter_context(mother.engine(model, folder / "kv"))
        identity = engine.http.get(f"{engine.url}/everturn/identity").raise_for_status().json()
        stack.enter_context(service.engine(identity | {"address": engine.url}))
        try:
            ogx = stack.enter_context(running_ogx(folder, engine.url))
        except NotHad as why:
            ogx = None
            note = f"not had: {why}"
        else:
            note = PACKAGES[0]
        print(f"OGX: {note}", flush=True)
        ways = [direct(engine.url), through("ours", service.url, service.tenant_key)]
        if ogx is not None:
            ways.append(through(OGX, ogx.url, "none", model=MODEL, every=OGX_EVERY))
        for many in streams:
            seen[many] = asyncio.run(alternate(ways, many, rounds))
            levels[str(many)] = figures(seen[many])
            print(f"{many} streams: {json.dumps(levels[str(many)])}", flush=True)
        steps = traced.steps_ms()
        kept = _kept(service, server, ogx, identity)
    one, most = levels[str(streams[0])], levels[str(streams[-1])]
    found = headline(one, most) | {"by_streams": levels, "ogx": note, "kept": kept, "steps_ms": steps}
    return Compared(figures=found, pace=Pace.of(seen[streams[0]][DIRECT]))


def headline(one: Mapping[str, float], most: Mapping[str, float]) -> dict[str, Any]:
    """Of the figures of one stream, and of as many as were measured."""
    return {
        "ttft_added_ms_p50": one["ttft_added_ms_p50"],
        "throughput_ratio": most["throughput_ratio"],
        "ttft_added_ogx_ms_p50": one.get(f"ttft_added_{OGX}_ms_p50"),
        "throughput_ratio_ogx": most.get(f"throughput_ratio_{OGX}"),
    }


def _kept(
    service: BenchService, server: EmbeddedPostgres, ogx: Ogx | None, identity: Mapping[str, Any]
) -> dict[str, dict[str, bool]]:
    asked = turn("What is kept of this?")
    ours = asyncio.run(stream_response(service.url, service.tenant_key, asked))
    kept = {"everturn": kept_by_service(service, server, ours.id, identity)}
    if ogx is not None:
        theirs = asyncio.run(stream_response(ogx.url, "none", asked | {"model": MODEL}))
        kept[OGX] = kept_by_ogx(ogx, theirs.id, identity)
    print(f"kept: {json.dumps(kept)}", flush=True)
    return kept
