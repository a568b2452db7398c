"""The soak of `make bench-api`, in small: what it makes, when it ends, and what it calls growth."""

import asyncio
import time
from dataclasses import replace
from math import inf

import pytest

from bench.api_memory import AT_AN_END, FEWEST_TURNS, SOAKERS, Soak
from bench.api_service import BenchService
from tests.api.stack import Stack


def asked(stack: Stack) -> int:
    """Requests that engines have had, of whatever test of this module."""
    return sum(len(engine.requests) for engine in stack.engines)


def test_it_makes_as_many_turns_as_it_is_asked_for_and_streams_half_of_them(
    service: BenchService, stack: Stack
) -> None:
    before = asked(stack)
    soak = Soak(turns=4 * SOAKERS, until=inf)
    asyncio.run(soak.run(service))
    assert (soak.made, asked(stack) - before) == (4 * SOAKERS, 4 * SOAKERS)
    assert abs(soak.streamed - soak.made / 2) <= SOAKERS / 2
    assert soak.samples[-1][0] == soak.made


def test_it_ends_when_its_time_is_over_and_says_how_many_it_has_made(
    service: BenchService, stack: Stack
) -> None:
    before = asked(stack)
    soak = Soak(turns=1_000_000, until=time.monotonic() + 0.5)
    asyncio.run(soak.run(service))
    found = soak.figures()
    assert (found["soak_turns_asked"], found["soak_turns"]) == (1_000_000, asked(stack) - before)
    assert 0 < found["soak_turns"] < 1_000_000


def test_one_whose_time_was_over_before_it_began_says_the_way_out(service: BenchService) -> None:
    soak = Soak(turns=5, until=time.monotonic())
    asyncio.run(soak.run(service))
    with pytest.raises(SystemExit, match="give it more, with --soak-s"):
        soak.figures()


def test_a_turn_that_is_refused_ends_it(service: BenchService) -> None:
    with pytest.raises(SystemExit, match="401"):
        asyncio.run(Soak(turns=SOAKERS, until=inf).run(replace(service, tenant_key="sk-nobody")))


def soaked(megabytes: list[float], turns: int = FEWEST_TURNS) -> Soak:
    each = turns // (len(megabytes) - 1)
    samples = [(number * each, weight) for number, weight in enumerate(megabytes)]
    return Soak(turns=turns, until=inf, made=turns, samples=samples, took_s=1.0)


def test_growth_is_what_lies_between_its_ends_however_it_came_about() -> None:
    found = soaked([100.0] * 50 + [130.0] * AT_AN_END).figures()
    assert (found["soak_mb_growth"], found["service_mb"]) == (30.0, 130.0)


def test_what_was_given_back_is_no_growth_and_is_told_apart() -> None:
    found = soaked([100.0] * AT_AN_END + [170.0] + [100.0] * AT_AN_END).figures()
    assert (found["soak_mb_growth"], found["soak_mb_most"]) == (0.0, 70.0)


def test_the_slope_is_that_of_100_000_turns() -> None:
    assert soaked([100.0 + number for number in range(51)]).figures()["soak_mb_slope"] == 1000.0


def test_of_few_turns_it_says_nothing_about_growth() -> None:
    assert soaked([100.0, 130.0], turns=FEWEST_TURNS - 1).figures()["soak_mb_growth"] is None
