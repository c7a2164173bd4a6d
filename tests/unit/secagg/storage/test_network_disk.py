"""A store in a file stays on a disk of its own machine."""

from pathlib import Path

import pytest

from secagg.errors import ErrorCode, ServiceError
from secagg.storage import directories
from secagg.storage.open_store import open_store

# As Linux shows them: a root, a share with a space in its name, a disk inside the
# share, and a disk that was mounted over another share.
MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:50 / {root}/my\\040share rw shared:2 master:3 - nfs4 host:/export rw
41 40 254:1 / {root}/my\\040share/disk rw - xfs /dev/vdb rw
42 22 0:51 / {root}/hidden rw - cifs //host/share rw
43 42 254:2 / {root}/hidden rw - ext4 /dev/vdc rw
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS.format(root=tmp_path))
    monkeypatch.setattr(directories, "_MOUNTS", table)
    return tmp_path


@pytest.mark.parametrize("place", ["state", "my share/disk/state", "hidden/state"])
def test_a_local_disk_is_accepted(root, place):
    directories.refuse_network_disk(root / place)


@pytest.mark.parametrize("place", ["my share", "my share/a/state", "my share/diskette"])
def test_a_network_share_is_rejected_with_its_type(root, place):
    with pytest.raises(ServiceError, match=r"\(nfs4\)") as caught:
        directories.refuse_network_disk(root / place)
    assert caught.value.code is ErrorCode.BAD_SETTINGS
    assert "server.store" in caught.value.next_step


async def test_no_store_is_created_on_a_network_share(root):
    share = root / "my share"
    share.mkdir()
    with pytest.raises(ServiceError, match="network file system"):
        await open_store(f"sqlite:{share}/book.sqlite3")
    assert not list(share.iterdir())


def test_a_system_without_mount_information_is_accepted(monkeypatch, tmp_path):
    monkeypatch.setattr(directories, "_MOUNTS", Path("/nowhere/mountinfo"))
    directories.refuse_network_disk(tmp_path)
