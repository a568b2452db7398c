"""The vLLM versions on which the whole test suite has run: on any other, an engine serves, but reads and saves no KV."""

from service.domain.errors import InvalidInput

TESTED_VLLM = ("0.32.0",)
"""To add one: install it, run `make test`, and change this line with whatever the tests asked for."""


def is_tested(version: str) -> bool:
    """Builds for other devices (`0.32.0+cpu`) are the same version."""
    return version.partition("+")[0] in TESTED_VLLM


def require_tested(version: str) -> None:
    if not is_tested(version):
        raise InvalidInput(
            f"vLLM {version} is untested with this Everturn, which knows {', '.join(TESTED_VLLM)}: "
            "what it hashes, lays out or calls may have changed. Install a tested version of vLLM, or a newer Everturn.",
            "engine_version",
        )
