"""Of all that a program writes as it fails, the one line that says why."""

import re

LONGEST_LINE = 600
# As in "(EngineCore pid=17) ERROR 01-31 12:00:00 [core.py:1099] ".
VLLM_PREFIX = re.compile(r"^(\(\w+ pid=\d+\) )?(?:(?P<level>[A-Z]+) [\d-]+ [\d:]+ \[[^]]*\] ?)?")
HARMLESS = {"DEBUG", "INFO", "WARNING"}
COMPLAINT = re.compile(r"FATAL|PANIC|CRITICAL|\bERROR\b|(Error|Exception)(:|$)|\berror: ", re.ASCII)
# Lines that match but only point elsewhere.
POINTER = re.compile(r"See (root cause above|stack trace for root cause)|Traceback \(most recent call last\)")


def last_meaningful_line(text: str) -> str:
    """The last complaint that is its own cause, with its detail; else the last line that says anything; else empty."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    stripped = [VLLM_PREFIX.sub("", line) for line in lines]
    complaints = [at for at, line in enumerate(lines) if _complains(line)]
    if not complaints:
        return next((line.strip() for line in reversed(stripped) if line), "")
    at = complaints[-1]
    detail = [line.strip() for line in stripped[at + 1 : at + 2] if line.startswith("  ")]
    return " ".join([stripped[at].strip(), *detail])[:LONGEST_LINE]


def _complains(line: str) -> bool:
    prefix = VLLM_PREFIX.match(line)
    if prefix is None or prefix["level"] in HARMLESS:
        return False
    said = line[prefix.end() :]
    # An exception's own line: those of its traceback are indented.
    return not said.startswith(" ") and bool(COMPLAINT.search(said)) and not POINTER.search(said)
