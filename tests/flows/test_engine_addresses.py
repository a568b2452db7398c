"""An engine is sent whole conversations: it may be where the operator's names, addresses and networks say, and nowhere else."""

import pytest

from service.domain.errors import InvalidInput
from service.rollout_flow import check_address

ALLOWED = frozenset({"10.1.0.0/16", "fd00::/8", "gpu-1.internal", "192.0.2.7"})


@pytest.mark.parametrize(
    "address",
    ["http://10.1.200.3:8000", "https://[fd00::7]:8000", "http://gpu-1.internal:8000", "http://192.0.2.7:80"],
)
def test_an_engine_may_be_at_a_name_or_within_a_network_of_the_list(address: str) -> None:
    check_address(address, ALLOWED)


@pytest.mark.parametrize(
    "address",
    [
        "http://10.2.0.1:8000",
        "http://127.0.0.1:8000",
        "http://192.0.2.8:80",
        "http://[::ffff:10.1.0.1]:8000",
        "http://gpu-1.internal.example.org:8000",
        "http://10.1.0.1.example.org:8000",
        "http://0x0a010001:8000",
        "http://167837697:8000",
    ],
)
def test_it_may_be_nowhere_else_and_the_setting_is_named(address: str) -> None:
    with pytest.raises(InvalidInput, match="EVERTURN_ENGINE_HOSTS sets the list"):
        check_address(address, ALLOWED)
