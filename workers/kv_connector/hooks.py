"""The one net under every hook that vLLM calls: an exception out of a hook would end the engine for good."""

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from vllm.logger import init_logger

logger = init_logger("vllm.everturn")

Self_ = TypeVar("Self_")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Hook = Callable[Concatenate[Self_, Arguments], Result]


def never_raises(
    otherwise: Callable[Concatenate[Self_, Exception, Arguments], Result],
) -> Callable[[Hook[Self_, Arguments, Result]], Hook[Self_, Arguments, Result]]:
    """`otherwise` gets the exception and the hook's arguments, records a refusal, and gives the harmless answer."""

    def wrap(hook: Hook[Self_, Arguments, Result]) -> Hook[Self_, Arguments, Result]:
        @functools.wraps(hook)
        def guarded(self: Self_, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            try:
                return hook(self, *args, **kwargs)
            except Exception as error:
                logger.exception("Everturn refused KV: its hook %s failed", hook.__name__)
                return otherwise(self, error, *args, **kwargs)

        return guarded

    return wrap
