import errno
import json

import numpy as np
import pytest

from secagg.errors import ErrorCode, InputError, ServiceError
from secagg.runtime.vector_files import (
    load_vector,
    write_bytes,
    write_json,
    write_vector,
)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint8])
def test_a_vector_is_read_as_it_was_written(tmp_path, dtype):
    vector = np.arange(5).astype(dtype)
    path = tmp_path / "deep" / "x.npy"
    write_vector(path, vector)
    again = load_vector(path)
    assert again.dtype == dtype
    np.testing.assert_array_equal(again, vector)


def test_a_truncated_file_is_refused(tmp_path):
    path = tmp_path / "x.npy"
    write_vector(path, np.zeros(100))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InputError, match="plain"):
        load_vector(path)


def test_a_header_that_claims_more_than_memory_is_rejected(tmp_path):
    path = tmp_path / "x.npy"
    with path.open("wb") as stream:
        claimed = {"descr": "<f8", "fortran_order": False, "shape": (10**15,)}
        np.lib.format.write_array_header_1_0(stream, claimed)
    with pytest.raises(InputError, match="than fit into memory"):
        load_vector(path)


def test_an_archive_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    with pytest.raises(InputError, match="plain"):
        load_vector(tmp_path / "x.npz")


def test_a_failed_write_leaves_only_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    write_json(path, {"sum": 1})

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("secagg.runtime.files.os.replace", full)
    with pytest.raises(ServiceError, match="No space left") as caught:
        write_json(path, {"sum": 2})
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    assert caught.value.next_step
    assert json.loads(path.read_text()) == {"sum": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ServiceError, match="cannot be written"):
        write_vector(tmp_path / "file" / "x.npy", np.zeros(1))


def test_files_that_name_clients_are_readable_by_their_owner_only(tmp_path):
    write_bytes(tmp_path / "receipt-1.bin", b"members")
    write_json(tmp_path / "report-1.json", {"survivors": ["a"]})
    write_vector(tmp_path / "sum-1.npy", np.zeros(2))
    modes = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir()}
    assert modes["receipt-1.bin"] == modes["report-1.json"] == 0
    assert modes["sum-1.npy"]
