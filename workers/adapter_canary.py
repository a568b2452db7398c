"""Asks an engine the canary under each of its adapters before turns go there, one at a heartbeat, and keeps what came of it."""

from collections.abc import Callable, Mapping, Sequence

from service.domain.adapter import Adapter, ServedAdapter, UnknownAdapter, in_one_line
from service.domain.errors import EngineFailed
from service.domain.revision import RevisionDigest
from workers.fleet_client import Canary

Ask = Callable[[str], Canary]
"""By the adapter's name. Raises: Unavailable; EngineFailed: it has no answer."""
Asked = tuple[str, RevisionDigest]


class AdapterCanaries:
    def __init__(self, ask: Ask | None) -> None:
        """`ask` is None where the operator wants no canary."""
        self._ask = ask
        self._answers: dict[Asked, Canary] = {}
        self._silent: dict[Asked, str] = {}
        """Why those have no answer that were asked in vain, whose turn it is again first; after all who were not asked yet."""
        self._refused: dict[Asked, str] = {}
        """By the API, whose revisions answer otherwise."""

    def ready(self, served: Sequence[Adapter]) -> tuple[Adapter, ...]:
        """Those that can be told of: one more is asked for that now, and whoever was not asked yet is left out.

        Raises:
            Unavailable: the engine does not answer.
        """
        if self._ask is not None:
            self._ask_one(self._ask, [one for one in served if isinstance(one, ServedAdapter)])
        return tuple(told for one in served if (told := self._told(one)) is not None)

    def answers(self, told: Sequence[Adapter]) -> dict[str, Canary]:
        asked = [one for one in told if isinstance(one, ServedAdapter)]
        return {one.model: self._answers[_key(one)] for one in asked if _key(one) in self._answers}

    def note(self, told: Sequence[Adapter], refused: Mapping[str, str]) -> tuple[Adapter, ...]:
        """Args: refused: why, by name. Returns what the API takes the engine to serve."""
        for one in told:
            if isinstance(one, ServedAdapter):
                self._refused.pop(_key(one), None)
                if one.model in refused:
                    self._refused[_key(one)] = refused[one.model]
        return self.known(told)

    def known(self, told: Sequence[Adapter]) -> tuple[Adapter, ...]:
        """As the API should have them, if it was told of these."""
        return tuple(
            UnknownAdapter(model=one.model, reason=self._refused[_key(one)])
            if isinstance(one, ServedAdapter) and _key(one) in self._refused
            else one
            for one in told
        )

    def _ask_one(self, ask: Ask, served: Sequence[ServedAdapter]) -> None:
        unasked = [one for one in served if _key(one) not in self._answers]
        if not unasked:
            return
        order = list(self._silent)
        one = min(unasked, key=lambda new: order.index(_key(new)) if _key(new) in order else -1)
        try:
            self._answers[_key(one)] = ask(one.model)
        except EngineFailed as error:
            # To the end of the line.
            self._silent.pop(_key(one), None)
            self._silent[_key(one)] = in_one_line(str(error))
        else:
            self._silent.pop(_key(one), None)

    def _told(self, one: Adapter) -> Adapter | None:
        if self._ask is None or isinstance(one, UnknownAdapter) or _key(one) in self._answers:
            return one
        if (why := self._silent.get(_key(one))) is None:
            return None
        return UnknownAdapter(model=one.model, reason=why)


def _key(one: ServedAdapter) -> Asked:
    return one.model, one.revision
