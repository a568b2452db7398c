"""The one net under every hook that vLLM calls: an exception out of a hook would end the engine for good."""

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

logger = logging.getLogger("vllm.everturn")

Hook = TypeVar("Hook", bound=Callable[..., Any])


def never_raises(otherwise: Callable[..., object]) -> Callable[[Hook], Hook]:
    """`otherwise` gets self, the exception and the hook's arguments; it records a refusal and gives the harmless answer."""

    def wrap(hook: Hook) -> Hook:
        @functools.wraps(hook)
        def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return hook(self, *args, **kwargs)
            except Exception as error:
                logger.exception("Everturn refused KV: its hook %s failed", hook.__name__)
                return otherwise(self, error, *args, **kwargs)

        return cast("Hook", guarded)

    return wrap
