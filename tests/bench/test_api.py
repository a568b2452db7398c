"""The last line of `make bench-api`: what reads it finds its figures by name."""

import json

import pytest

from bench import api_memory
from bench.api import last_line
from bench.api_added import headline
from bench.api_compare import DIRECT, Round, figures
from bench.api_load import Streamed
from bench.api_memory import soak_figures, stream_figures
from bench.api_rows import rows
from bench.api_service import BenchService

OF_MEMORY = ("mb_per_stream", "soak_mb_growth")
OF_TIME = ("ttft_added_ms_p50", "throughput_ratio")


def written(found: dict[str, object]) -> dict[str, object]:
    line: dict[str, object] = json.loads(json.dumps(last_line(found)))
    return line


def test_the_memory_part_has_its_figures_and_its_rows(
    service: BenchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_memory, "FEWEST_TURNS", 1)
    monkeypatch.setattr(api_memory, "PAUSE_S", 0.05)
    found = soak_figures(service, turns=20, limit_s=60, warm_up=5) | stream_figures(service, 5)
    line = written(found)
    assert all(isinstance(line[name], float) for name in OF_MEMORY)
    assert [line[name] for name in OF_TIME] == [None, None]
    assert (line["soak_turns"], line["soak_warm_up_turns"], line["streams_broken"]) == (20, 5, 0)
    assert "20 turns in" in "\n".join(rows(found))


def test_a_soak_that_is_cut_short_says_so(service: BenchService, capsys: pytest.CaptureFixture[str]) -> None:
    found = soak_figures(service, turns=1_000_000, limit_s=1, warm_up=0)
    said = f"{found['soak_turns']:,} of 1,000,000 turns"
    assert f"the soak was ended after 1 s: {said}\n" in capsys.readouterr().out


def a_round(first_s: float, total_s: float) -> dict[int, Round]:
    return {1: (total_s, [Streamed(0.0, first_s=first_s, total_s=total_s, tokens=32, ended=True)])}


def test_the_part_that_takes_times_has_its_figures() -> None:
    level = figures({DIRECT: a_round(0.1, 1.0), "ours": a_round(0.11, 1.25)})
    line = written(headline(level, level))
    assert [line[name] for name in OF_TIME] == [10.0, 0.8]
    assert [line[name] for name in OF_MEMORY] == [None, None]
