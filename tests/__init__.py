"""What the tests ask is on this machine: a proxy that the environment names is for the rest of the world."""

import os

HERE = "127.0.0.1,localhost"

_spared = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
os.environ["no_proxy"] = os.environ["NO_PROXY"] = f"{HERE},{_spared}" if _spared else HERE
