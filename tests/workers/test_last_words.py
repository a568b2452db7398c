"""Of all that vLLM, PostgreSQL and others write as they fail, the one line that says why."""

import pytest

from workers.last_words import last_meaningful_line

CORE = "(EngineCore pid=25985) ERROR 11-29 19:57:44 [core.py:1510] "


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", ""),
        ("Starting\n\n", "Starting"),
        ("one\n\n two \n\n", "two"),
        ("FATAL:  no space\nLOG:  database system is shut down\n", "FATAL:  no space"),
        (
            "2026-01-31 12:00:00.1 UTC [7] FATAL:  no space\n2026-01-31 12:00:00.2 UTC [7] LOG:  shut down\n",
            "2026-01-31 12:00:00.1 UTC [7] FATAL:  no space",
        ),
        (
            "ValueError: bad shard\nRuntimeError: Engine core failed. See root cause above.\n",
            "ValueError: bad shard",
        ),
        ("Traceback (most recent call last):\n  File 'x'\nKeyError: 'rope'\nbye\n", "KeyError: 'rope'"),
        ("AssertionError\nException ignored in: <function f>\n", "AssertionError"),
        (
            "[2026-01-31 12:00:00,1: ERROR/MainProcess] no broker\nbye\n",
            "[2026-01-31 12:00:00,1: ERROR/MainProcess] no broker",
        ),
        (
            (
                f"{CORE}Traceback (most recent call last):\n{CORE}  File x\n{CORE}    raise KeyError(\n"
                f"{CORE}RuntimeError: The size of tensor a (64) must match\n"
                f"{CORE}Exception: WorkerProc initialization failed. See stack trace for root cause.\n"
                "    raise RuntimeError(\nRuntimeError: Engine core initialization failed. See root cause above.\n"
            ),
            "RuntimeError: The size of tensor a (64) must match",
        ),
        (
            (
                "pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
                "  Value error, max_model_len (999999) is greater than 8192\n    For further information visit x\n"
            ),
            (
                "pydantic_core.ValidationError: 1 validation error for ModelConfig "
                "Value error, max_model_len (999999) is greater than 8192"
            ),
        ),
        (
            "usage: api_server.py\napi_server.py: error: unrecognized arguments: --no\n",
            "api_server.py: error: unrecognized arguments: --no",
        ),
        (
            "(APIServer pid=1) WARNING 11-29 19:56:29 [x.py:1] This can cause errors like `OSError: no`\nKilled\n",
            "Killed",
        ),
    ],
)
def test_the_cause_is_found(log: str, line: str) -> None:
    assert last_meaningful_line(log) == line
