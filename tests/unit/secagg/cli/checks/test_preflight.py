"""What is looked at before a program begins, and which of it may wait."""

import errno

import pytest

from secagg.cli.checks import preflight
from secagg.cli.checks.preflight import (
    CheckResult,
    CheckState,
    DiskFullError,
    check_writable,
    require_all,
)
from secagg.errors import ErrorCode, ServiceError


def full(tmp_path, monkeypatch, number):
    """Return what is said of a directory whose disk refuses."""

    def refuse(**_):
        raise OSError(number, "No")

    monkeypatch.setattr(preflight.tempfile, "TemporaryFile", refuse)
    with pytest.raises(ServiceError, match="cannot be written: No") as caught:
        check_writable(tmp_path)
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    return caught.value


def failed(error):
    return CheckResult(
        "D170", "sums", CheckState.FAILED, str(error), error.next_step, error
    )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_for_sums_does_not_prevent_the_start(tmp_path, monkeypatch, number):
    checks = [
        CheckResult("D100", "a", CheckState.OK, "fine"),
        failed(full(tmp_path, monkeypatch, number)),
    ]
    (complaint,) = require_all(checks, may_be_full="D170")
    assert str(tmp_path) in complaint
    for other in ("", "D100"):  # a script, and another place
        with pytest.raises(DiskFullError):
            require_all(checks, may_be_full=other)


def test_an_unwritable_directory_prevents_the_start(tmp_path, monkeypatch):
    checks = [failed(full(tmp_path, monkeypatch, errno.EACCES))]
    with pytest.raises(ServiceError):
        require_all(checks, may_be_full="D170")
