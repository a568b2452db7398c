"""Parts of the guard switched off, each in an engine process of its own, to see whether the others hold alone.

Nothing of Everturn itself can do this: these classes stand only here.
"""

from typing import Any

from service.domain.artifact import Admitted, Manifest, Refused, admit
from service.domain.revision import Descriptor
from workers.kv_connector import connector, scheduler
from workers.kv_connector.connector import EverturnConnector
from workers.kv_connector.loading import Loader
from workers.kv_connector.middleware import EverturnMiddleware


class NoMiddleware(EverturnMiddleware):
    """Line 1 off: whoever is meant, the request passes."""

    def _check_claims(self, *_: Any) -> None:
        return


class CredulousLoader(Loader):
    def _check_may_read(self, *_: Any) -> None:
        return

    def _check(self, *_: Any) -> None:
        return


def credulous_admit(manifest: Manifest, *, own: Descriptor | None, **more: Any) -> Admitted | Refused:
    """As if this engine were whatever made the artifact."""
    del own
    return admit(manifest, own=manifest.descriptor, **more)


class NoScheduler(EverturnConnector):
    """Line 2 off."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        vars(scheduler)["admit"] = credulous_admit
        super().__init__(vllm_config, role, kv_cache_config)


class NoWorker(EverturnConnector):
    """Line 3 off."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        vars(connector)["Loader"] = CredulousLoader
        super().__init__(vllm_config, role, kv_cache_config)


class NeitherSide(NoScheduler, NoWorker):
    """Lines 2 and 3 off."""


class NoRoot(EverturnConnector):
    """Block hashes as vLLM makes them, from tokens alone."""

    def on_new_request(self, request: Any) -> None:
        """Nothing is folded into them."""


class WeightsOpen(EverturnMiddleware):
    """Routes by which weights change pass, as a call inside the process does, which no middleware sees."""

    async def _answer(self, scope: Any, *more: Any) -> object | None:
        if scope["path"] == "/collective_rpc":
            return None
        return await super()._answer(scope, *more)
