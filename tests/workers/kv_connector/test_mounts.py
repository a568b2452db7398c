"""Whether a file's times are kept, by the mount table of its machine."""

from pathlib import Path

import pytest

from workers.kv_connector.mounts import MOUNT_TABLE, TRUSTED, Mounts

TABLE = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 27 0:40 / /models rw,relatime - fuse.gcsfuse bucket rw
41 40 259:1 / /models/local rw,relatime master:2 propagate_from:1 - xfs /dev/nvme0n1 rw
42 27 0:41 / /a\040disk rw,relatime - nfs4 host:/export rw
43 27 0:42 / /twice rw,relatime - ext4 /dev/vdb rw
44 43 0:43 / /twice rw,relatime - squashfs /dev/loop0 ro
45 27 0:44 / /containers rw - overlay overlay rw,lowerdir=/l,upperdir=/u
not a line of it
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Mounts:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    return Mounts.read(table)


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/srv/model.safetensors", True),
        ("/models/v12/model.safetensors", False),
        ("/models/local/v12/model.safetensors", True),
        ("/models-too/model.safetensors", True),
        ("/a disk/model.safetensors", False),
        ("/twice/model.safetensors", False),
        ("/containers/model.safetensors", False),
        ("/proc/model.safetensors", False),
    ],
)
def test_a_file_is_trusted_by_the_file_system_that_it_lies_on(mounts: Mounts, path: str, kept: bool) -> None:
    assert mounts.keep_times(Path(path)) is kept


def test_what_counts_is_where_the_file_is_and_not_the_link_to_it(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "blob").write_bytes(b"")
    (tmp_path / "snapshot").symlink_to(tmp_path / "far" / "blob")
    mounts = Mounts({Path("/"): "ext4", tmp_path / "far": "nfs4"})
    assert not mounts.keep_times(tmp_path / "snapshot")


def test_without_a_mount_table_nothing_is_trusted(tmp_path: Path) -> None:
    assert not Mounts.read(tmp_path / "none").keep_times(tmp_path)


def test_this_machines_own_table_is_read() -> None:
    assert Path("/") in Mounts.read(MOUNT_TABLE).kinds
    assert not TRUSTED & {"overlay", "squashfs", "nfs", "nfs4", "cifs", "9p", "virtiofs", "ceph", "lustre"}
