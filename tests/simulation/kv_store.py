"""The shared KV store: blocks and manifests as bytes, which can be lost, damaged, exchanged and out of reach."""

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from random import Random

from service.domain.artifact import ArtifactId, Manifest
from service.domain.revision import RevisionDigest
from workers.kv_connector.block_file import BlockHeader, checksum, sealed, unsealed

BlockName = tuple[str, RevisionDigest, str]
ManifestName = tuple[str, ArtifactId]


class StoreAway(OSError): ...


@dataclass(slots=True)
class KvStore:
    """`kept`: of each; the oldest are evicted, as a collector with a budget does."""

    kept: int = 100_000
    away: bool = False
    slow_s: float = 0.0
    """That each use of it takes longer."""
    blocks: OrderedDict[BlockName, tuple[BlockHeader, bytes]] = field(default_factory=OrderedDict)
    manifests: OrderedDict[ManifestName, bytes] = field(default_factory=OrderedDict)
    attempts: dict[ArtifactId, str] = field(default_factory=dict)
    """Whose each artifact is; also once it is gone."""
    covered: dict[BlockName, tuple[int, ...]] = field(default_factory=dict)
    """For the checks alone: the tokens that a block's writer took it for the KV of."""

    def put_block(self, header: BlockHeader, payload: bytes) -> bool:
        self._reach()
        name = (header.tenant, header.revision, header.key)
        if name in self.blocks:
            return False
        self.blocks[name] = (header, payload)
        while len(self.blocks) > self.kept:
            gone, _ = self.blocks.popitem(last=False)
            self.covered.pop(gone, None)
        return True

    def read_block(self, tenant: str, revision: RevisionDigest, key: str) -> tuple[BlockHeader, bytes]:
        self._reach()
        found = self.blocks.get((tenant, revision, key))
        if found is None:
            raise FileNotFoundError(key)
        return found

    def put_manifest(self, manifest: Manifest) -> bool:
        self._reach()
        name = (manifest.tenant, manifest.artifact)
        if name in self.manifests:
            return False
        self.manifests[name] = sealed(manifest.to_bytes())
        self.attempts[manifest.artifact] = manifest.attempt
        while len(self.manifests) > self.kept:
            self.manifests.popitem(last=False)
        return True

    def read_manifest(self, tenant: str, artifact: ArtifactId) -> bytes:
        self._reach()
        found = self.manifests.get((tenant, artifact))
        if found is None:
            raise FileNotFoundError(artifact)
        return unsealed(found)

    def quarantine(self, tenant: str, revision: RevisionDigest, key: str) -> None:
        self.blocks.pop((tenant, revision, key), None)

    def damage(self, random: Random) -> str:
        """As disks, collectors and copies do; returns what was done."""
        kinds = ("bytes", "exchange", "lose block", "manifest", "lose manifest", "wipe")
        kind = random.choice(kinds)
        if kind == "wipe" or not self.blocks or not self.manifests:
            self.wipe()
            return "wipe"
        name = random.choice(list(self.blocks))
        header, payload = self.blocks[name]
        manifest = random.choice(list(self.manifests))
        if kind == "bytes":
            self.blocks[name] = (header, bytes([payload[0] ^ 1]) + payload[1:])
        elif kind == "exchange":
            self.blocks[name] = self.blocks[random.choice(list(self.blocks))]
        elif kind == "lose block":
            del self.blocks[name]
        elif kind == "manifest":
            data = self.manifests[manifest]
            place = random.randrange(len(data))
            self.manifests[manifest] = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        else:
            del self.manifests[manifest]
        return kind

    def wipe(self) -> None:
        self.blocks.clear()
        self.manifests.clear()

    def forge(self, random: Random, revision: RevisionDigest) -> bool:
        """Puts the KV of another revision where that of `revision` is looked for: whole, sealed, and wrong."""
        foreign = [name for name in self.blocks if name[1] != revision]
        if not foreign:
            return False
        name = random.choice(foreign)
        header, payload = self.blocks[name]
        forged = replace(header, checksum=checksum(payload).hexdigest())
        own = [one for one in self.blocks if one[1] == revision]
        self.blocks[random.choice(own) if own else (name[0], revision, name[2])] = (forged, payload)
        return True

    def _reach(self) -> None:
        if self.away:
            raise StoreAway("the store does not answer")
