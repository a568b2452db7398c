"""What vLLM's block hashes start from: this engine's revision and the request's tenant, so that nothing keyed by them crosses either.

vLLM hashes a request's salt into its first block, and each block into the next: its own prefix cache, its offload tiers and every
connector that names KV by block hash look under other names once the salt differs.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from service.domain import canonical
from service.domain.revision import RevisionDigest

NO_TENANT = "-"
"""Of requests that name none: they share KV with each other, and with no tenant."""

PLAIN = "-"
"""Of requests that are computed on their tokens alone."""


class HashRoot:
    def __init__(self, nonce: str) -> None:
        """`nonce`: of this boot alone, for as long as the revision is unknown: then KV is shared with no other boot."""
        self._nonce = nonce
        self._identity = f"unmeasured_{nonce}"

    def identify(self, revision: RevisionDigest) -> None:
        self._identity = revision

    def disown(self, change: int) -> None:
        """The weights were changed in place, for the `change`th time: what was computed before is not found any more."""
        self._identity = f"changed_{change}_{self._nonce}"

    def salt(self, tenant: str | None, callers: str | None, apart: Sequence[str | None] = ()) -> str:
        """Whatever salt the caller gave, or forgot, only divides further what revision, tenant and `apart` divide.

        Those come first and hold no space, so no caller's salt can look like them.
        """
        folder = NO_TENANT if tenant is None else sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()
        kind = canonical.digest(list(apart)) if apart else PLAIN
        return f"everturn {self._identity} {folder} {kind} {callers or ''}"

    def fold_into(self, request: Any, tenant: str | None, apart: Sequence[str | None] = ()) -> None:
        """Before the engine looks the request up anywhere."""
        # First of all: a request without hashes finds nothing, should what follows fail.
        request.block_hashes.clear()
        request.cache_salt = self.salt(tenant, request.cache_salt, apart)
        request.update_block_hashes()

    def fold_apart(self, request: Any) -> None:
        """Of a request that could not be read: vLLM looks it up next all the same, so it shares with nobody."""
        self.fold_into(request, None, ("unread", request.request_id))
