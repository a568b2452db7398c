"""An adapter's identity: the bytes of its weights and of its config, scale included, in a private copy that only vLLM reads.

vLLM loads an adapter from its folder when a batch first needs it, and again after it was evicted, so a folder that others
can write identifies nothing. Whoever starts an engine or loads an adapter takes a copy first, named by the digest of its bytes.
"""

import os
import secrets
import shutil
from collections import OrderedDict
from pathlib import Path
from re import fullmatch
from typing import Any

from service.domain.adapter import ADAPTER_FORM, NO_ADAPTER, effective
from service.domain.errors import InvalidInput
from service.domain.revision import Descriptor, RevisionDigest
from workers.kv_connector.weights import files_digest

FOLDER = "adapters"
"""Of the private copies, inside the engine's run folder."""
FILES = ("adapter_config.json", "adapter_model.safetensors")
"""All that is copied, so that nothing else can decide what is loaded."""
KEPT = 4096

StatKey = tuple[tuple[int, ...], ...]


def take_copy(source: Path, folder: Path) -> Path:
    """The private copy under `folder`; taken before anything is loaded, and the same for the same bytes.

    Raises:
        InvalidInput: naming what the adapter lacks.
    """
    for name in FILES:
        if not (source / name).is_file():
            raise InvalidInput(
                f"'{source}' has no {name}: give the folder of a LoRA adapter as PEFT saves it, with safetensors.",
                "adapter",
            )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = folder / f".{os.getpid()}.{secrets.token_hex(8)}"
    temporary.mkdir(mode=0o700)
    try:
        for name in FILES:
            shutil.copyfile(source / name, temporary / name)
            (temporary / name).chmod(0o400)
        copy = folder / adapter_digest(temporary)
        if not copy.exists():
            temporary.rename(copy)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return copy


def adapter_digest(folder: Path) -> str:
    """SHA-256 over names and bytes of config and weights, hex."""
    return files_digest([folder / name for name in FILES], cache=None)


class Adapters:
    """Which adapter a request is really computed with. Anything that is not certain has no identity."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: of the private copies; None where there are none."""
        self._folder = folder
        self._measured: OrderedDict[str, StatKey] = OrderedDict()
        self._bound: dict[tuple[str, object], str | None] = {}
        self._effective: tuple[Descriptor, dict[str, Descriptor]] | None = None
        self._digests: dict[str, tuple[Descriptor, RevisionDigest]] = {}

    def measure(self, lora: Any) -> str:
        """`NO_ADAPTER` for None; cheap enough for every request: after the first time, a few stats.

        Args:
            lora: vLLM's LoRARequest, whose name is no evidence, and whose path is none by itself.

        Raises:
            InvalidInput: saying why the bytes in the engine are not known.
        """
        if lora is None:
            return NO_ADAPTER
        copy = Path(lora.lora_path)
        if copy.parent != self._folder or not fullmatch(ADAPTER_FORM, copy.name):
            raise _unknown(lora, f"it was loaded from '{copy}', which others may write: use --adapter")
        if lora.load_inplace:
            raise _unknown(lora, "it is reloaded in place while requests run")
        # vLLM takes two requests with one name or one id for the same adapter.
        for key in (("name", lora.lora_name), ("id", lora.lora_int_id)):
            if self._bound.setdefault(key, copy.name) != copy.name:
                self._bound[key] = None
                raise _unknown(lora, f"its {key[0]} has stood for other bytes in this engine")
        self._check_bytes(lora, copy)
        return copy.name

    def of(self, own: Descriptor, adapter: str) -> Descriptor:
        """As `effective`, remembered."""
        if self._effective is None or self._effective[0] is not own:
            self._effective = (own, {})
        known = self._effective[1]
        if adapter not in known:
            known[adapter] = effective(own, adapter)
        return known[adapter]

    def digest(self, own: Descriptor) -> RevisionDigest:
        """Of one that `of` gave; remembered, since it takes a quarter of a millisecond to make, and every request asks for it."""
        adapter = own.kv.adapter
        known = self._digests.get(adapter)
        if known is None or known[0] is not own:
            known = self._digests[adapter] = (own, own.digest)
        return known[1]

    def _check_bytes(self, lora: Any, copy: Path) -> None:
        try:
            now = _stat_key(copy)
            if copy.name not in self._measured:
                if adapter_digest(copy) != copy.name:
                    raise _unknown(lora, f"'{copy}' does not hold what its name says")
                self._measured[copy.name] = now
                while len(self._measured) > KEPT:
                    self._measured.popitem(last=False)
        except OSError as error:
            raise _unknown(lora, f"its private copy cannot be read: {error}") from error
        if self._measured[copy.name] != now:
            raise _unknown(lora, f"'{copy}' was changed after it was measured")


def _unknown(lora: Any, why: str) -> InvalidInput:
    return InvalidInput(f"adapter '{lora.lora_name}' has no identity: {why}", "adapter")


def _stat_key(copy: Path) -> StatKey:
    """Of the folder too: a file that is added shows there."""
    stats = [path.stat() for path in (copy, *(copy / name for name in FILES))]
    return tuple((s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in stats)
