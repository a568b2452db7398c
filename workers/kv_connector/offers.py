"""Reads the manifest that a request was offered; whatever is not whole and what it was called is refused."""

from service.domain.artifact import ArtifactId, Manifest, RefusalReason, Refused
from service.domain.errors import InvalidManifest
from workers.kv_connector.store import BlockStore


def read_offer(store: BlockStore, tenant: str, artifact: ArtifactId) -> Manifest | Refused:
    try:
        manifest = Manifest.from_bytes(store.read_manifest(tenant, artifact))
    except FileNotFoundError:
        return Refused(reason=RefusalReason.MANIFEST_MISSING, detail="the store has no such manifest")
    except OSError as error:
        return Refused(reason=RefusalReason.STORE_UNREACHABLE, detail=str(error))
    except InvalidManifest as error:
        return Refused(reason=RefusalReason.MANIFEST_UNREADABLE, detail=str(error))
    if manifest.artifact != artifact:
        return Refused(
            reason=RefusalReason.MANIFEST_UNREADABLE, detail=f"it calls itself {manifest.artifact}"
        )
    return manifest
