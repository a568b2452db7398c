"""What was measured, as docs/performance.md has it: rows to be put in its two tables."""

from collections.abc import Iterator, Mapping
from typing import Any

Found = Mapping[str, Any]


def rows(found: Found) -> Iterator[str]:
    """Of what is there; a part of the bench has not all of it."""
    if "by_streams" in found:
        yield from _added(found)
        yield from _steps(found["steps_ms"], found["steps_idle_engine_ms"])
    if "soak_turns" in found:
        yield from _memory(found)


def _added(found: Found) -> Iterator[str]:
    real, idle, spread = found["by_streams"], found["by_streams_idle_engine"], found["spread_idle_engine"]
    kept = min(level["pace_kept"] for level in idle.values())
    yield f"| `ttft_added_ms_p50` | {_first_texts(real)} |"
    yield f"| `throughput_ratio` | {_ratios(real)} |"
    yield f"| `ttft_added_idle_engine_ms_p50` | {_first_texts(idle)} |"
    yield f"| `throughput_ratio_idle_engine` | {_ratios(idle)}; the engine kept its pace to {kept:.3f} |"
    yield f"| `spread_idle_engine` | {spread['ttft_added_ms_p50']:.1f} ms, {spread['throughput_ratio']:.3f} |"
    if found.get("ttft_added_ogx_ms_p50") is not None:
        yield f"| `ttft_added_ogx_ms_p50`, `throughput_ratio_ogx` | {found['ttft_added_ogx_ms_p50']:.0f} ms, {found['throughput_ratio_ogx']:.2f} |"
    spent = ", ".join(f"{idle[many]['service_cpu_ms_per_turn']:.1f} with {many}" for many in idle)
    yield f"CPU of the service for a turn of 32 tokens that is streamed: {spent} streams"


def _first_texts(levels: Mapping[str, Found]) -> str:
    return ", ".join(
        f"{level['ttft_added_ms_p50']:.1f} on {level['direct_ttft_ms_p50']:,.0f} with {many}"
        for many, level in levels.items()
    )


def _ratios(levels: Mapping[str, Found]) -> str:
    return ", ".join(f"{level['throughput_ratio']:.2f} with {many}" for many, level in levels.items())


def _steps(real: Mapping[str, float], idle: Mapping[str, float]) -> Iterator[str]:
    yield "| step | with vLLM | engine idle |"
    yield "|---|---|---|"
    for name, took in real.items():
        yield f"| {name} | {took:.2f} | {idle[name]:.2f} |"


def _memory(found: Found) -> Iterator[str]:
    broken = found["streams_broken"] or "none"
    yield (
        f"| `mb_per_stream`, `gap_s_p99` | {broken} broken of {found['streams']}; {found['mb_per_stream']:.3f} MB of the service each; "
        f"p99 between two texts {found['gap_s_p99']:.2f} s, of the engine's own {found['gap_s_of_engine']:.1f} |"
    )
    yield (
        f"| `soak_mb_growth` | {_soaked(found)} after {found['soak_warm_up_turns']:,} of warm-up, {found['soak_streamed']:,} of them "
        f"streamed, 16 at once: memory grew by {found['soak_mb_growth']} MB to {found['service_mb']:.0f}, and was never more than "
        f"{found['soak_mb_most']} MB above its beginning; a straight line through it rises by {found['soak_mb_slope']} MB for each 100,000; "
        f"{found['soak_turns_per_s']:.0f} turns a second, {found['service_cpu_ms_per_turn']:.1f} ms of the service's CPU each |"
    )


def _soaked(found: Found) -> str:
    made, asked = found["soak_turns"], found["soak_turns_asked"]
    return (
        f"{made:,} turns in {found['soak_s']:,} s"
        if made == asked
        else f"{made:,} of {asked:,} turns, in {found['soak_s']:,} s,"
    )
