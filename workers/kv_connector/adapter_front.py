"""Adapters at the engine's front: which revision a request for a model's name is answered under, and loading at run time.

vLLM is only ever told of private copies, and one name never stands for two adapters in the life of an engine.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from service.domain.adapter import (
    LONGEST_NAME,
    Adapter,
    ServedAdapter,
    UnknownAdapter,
    effective,
    in_one_line,
    is_name,
)
from service.domain.errors import InvalidInput
from service.domain.revision import Descriptor
from workers.kv_connector.adapters import FOLDER, Adapters, take_copy

LOAD_ROUTE = "/v1/load_lora_adapter"
UNLOAD_ROUTE = "/v1/unload_lora_adapter"


class AdapterFront:
    def __init__(self, run_dir: Path, describe: Callable[[Descriptor], None]) -> None:
        """`describe` puts a descriptor where others can look up what its digest stands for."""
        self._folder = run_dir / FOLDER
        self._describe = describe
        self._described: set[str] = set()
        self._adapters = Adapters(self._folder)
        self._measuring = Lock()
        self._names: dict[str, str] = {}
        self._loading = asyncio.Lock()

    async def served(self, identity: dict[str, Any], loaded: Mapping[str, Any]) -> list[dict[str, str]]:
        """What vLLM answers for beside the base: each name with its revision, or with the reason why it has none."""
        own, loras = Descriptor.from_json(identity["descriptor"]), list(loaded.items())

        def told() -> list[dict[str, str]]:
            adapters = (self._served(own, model, lora) for model, lora in loras)
            return list({adapter.model: adapter.to_json() for adapter in adapters}.values())

        return await asyncio.to_thread(told)

    def _served(self, own: Descriptor, model: str, lora: Any) -> Adapter:
        if not is_name(model):
            reason = f"a name must be 1 to {LONGEST_NAME} printable characters: load it under another"
            return UnknownAdapter(model=ascii(model)[:LONGEST_NAME], reason=reason)
        try:
            adapter = self._measured(lora)
        except InvalidInput as error:
            return UnknownAdapter(model=model, reason=in_one_line(str(error)))
        descriptor = effective(own, adapter)
        revision = descriptor.digest
        if revision not in self._described:
            self._describe(descriptor)
            self._described.add(revision)
        return ServedAdapter(model=model, adapter=adapter, revision=revision)

    def _measured(self, lora: Any) -> str:
        with self._measuring:  # requests are measured in the event loop, the list of what is served beside it
            return self._adapters.measure(lora)

    def identity(self, identity: dict[str, Any], body: bytes, loaded: Mapping[str, Any]) -> dict[str, Any]:
        """That of the engine with the adapter in it that the body's model names.

        Args:
            identity: the engine's own.
            body: of a request to vLLM.
            loaded: vLLM's LoRARequests by name.
        """
        lora = loaded.get(_model(body))
        if lora is None or identity["revision"] is None:
            return identity
        try:
            adapter = self._measured(lora)
        except InvalidInput as error:
            return {**identity, "revision": None, "error": str(error)}
        own = self._adapters.of(Descriptor.from_json(identity["descriptor"]), adapter)
        return {**identity, "revision": own.digest, "descriptor": own.to_json()}

    async def private_load(self, body: bytes, loaded: Mapping[str, Any]) -> bytes:
        """The body of a call that loads an adapter, with a private copy in the place of the given path.

        Raises:
            InvalidInput: naming the field.
        """
        call = _object(body)
        name, path = call.get("lora_name"), call.get("lora_path")
        if not isinstance(name, str) or not is_name(name):
            raise InvalidInput(f"'lora_name' must be 1 to {LONGEST_NAME} printable characters.", "lora_name")
        if not isinstance(path, str) or not path:
            raise InvalidInput("'lora_path' must be a folder on this machine.", "lora_path")
        if call.get("load_inplace"):
            raise InvalidInput(
                "'load_inplace' would change an adapter under the requests that use it: load it under a new name.",
                "load_inplace",
            )
        async with self._loading:
            copy = await asyncio.to_thread(take_copy, Path(path), self._folder)
            for known, lora in loaded.items():
                self._names.setdefault(known, Path(lora.lora_path).name)
            if self._names.setdefault(name, copy.name) != copy.name:
                raise InvalidInput(
                    f"'{name}' has stood for adapter {self._names[name][:16]} in this engine, and this is {copy.name[:16]}: "
                    "load it under a new name.",
                    "lora_name",
                )
        return json.dumps(call | {"lora_path": str(copy)}).encode()


def _model(body: bytes) -> str:
    try:
        document = json.loads(body)
    except ValueError:
        return ""
    name = document.get("model") if isinstance(document, dict) else None
    return name if isinstance(name, str) else ""


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError as error:
        raise InvalidInput(f"The body is not JSON: {error}.", "body") from error
    if not isinstance(document, dict):
        raise InvalidInput("The body must be a JSON object.", "body")
    return document
