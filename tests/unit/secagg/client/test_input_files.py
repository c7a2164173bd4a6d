"""Which file was given to which session: told from every other, by no word of it."""

import os
from dataclasses import replace

import numpy as np
import pytest
from secagg_testing.cohorts import offer_of, parameters_for

from secagg.client.gate import SessionInfo
from secagg.client.input_files import FileInput
from secagg.errors import InputError

OFFER = offer_of(
    parameters_for(3, dimension=4, threshold=2),
    aggregator="hub",
    task_id="sums",
    session_number=3,
    session_end=1_900_000_000,
)


def info(number=3, task="sums"):
    offer = replace(OFFER, session_number=number, task_id=task)
    return SessionInfo(descriptor=offer, dimension=4, privacy=None)


@pytest.fixture
def path(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4))
    return tmp_path / "x.npy"


def read_sessions(path, *sessions):
    source = FileInput(path, state_dir=path.parent / "state")
    for session in sessions:
        source.vector(session)
    return source


def test_the_next_process_knows_which_session_used_the_file(path):
    read_sessions(path, info())
    again = read_sessions(path)
    assert again.was_assigned("sums", 3)
    assert not again.was_assigned("sums", 4)
    assert not again.was_assigned("others", 3)


def test_a_replaced_file_counts_as_a_new_one(path):
    read_sessions(path, info())
    other = path.with_name("other.npy")
    np.save(other, np.arange(4))
    about = path.stat()
    os.utime(other, ns=(about.st_atime_ns, about.st_mtime_ns))
    other.replace(path)
    assert not read_sessions(path).was_assigned("sums", 3)


def test_a_rewritten_file_counts_as_a_new_one(path):
    read_sessions(path, info())
    np.save(path, np.arange(4))
    os.utime(path, ns=(1, 1))
    assert not read_sessions(path).was_assigned("sums", 3)


def test_a_file_replaced_after_it_was_read_counts_as_a_new_one(path):
    source = read_sessions(path)
    source.ready()
    np.save(path, np.ones(4))
    os.utime(path, ns=(1, 1))
    source.vector(info())  # the one that was read at the start
    assert not read_sessions(path).was_assigned("sums", 3)


def test_with_a_file_per_session_a_deleted_file_still_counts_as_used(tmp_path):
    pattern = tmp_path / "x-{session}.npy"
    np.save(tmp_path / "x-1.npy", np.zeros(4))
    read_sessions(pattern, info(1))
    np.save(tmp_path / "x-2.npy", np.zeros(4))
    assert read_sessions(pattern).was_assigned("sums", 1)
    assert not read_sessions(pattern).was_assigned("sums", 2)
    (tmp_path / "x-1.npy").unlink()
    assert read_sessions(pattern).was_assigned("sums", 1)


@pytest.mark.parametrize("damage", [b"", b"[]", b"{", b'{"sums/3": 7}'])
def test_an_unreadable_record_counts_no_file_as_used(path, damage):
    read_sessions(path, info())
    note = path.parent / "state" / "given-files.json"
    assert b"sums/3" in note.read_bytes()
    note.write_bytes(damage)
    assert not read_sessions(path).was_assigned("sums", 3)
    read_sessions(path, info())
    assert read_sessions(path).was_assigned("sums", 3)


def test_only_the_latest_assignments_are_kept(path):
    source = read_sessions(path, *(info(number) for number in range(1, 71)))
    known = [number for number in range(1, 71) if source.was_assigned("sums", number)]
    assert known == list(range(7, 71))


def test_a_vector_rejected_by_the_session_does_not_count_as_used(path):
    """Zeros take its place; the next process must not call it given."""
    np.save(path, np.arange(5))
    with pytest.raises(InputError, match="5 entries"):
        read_sessions(path, info())
    assert not read_sessions(path).was_assigned("sums", 3)


def test_the_record_contains_no_value_of_the_vector(path):
    np.save(path, np.full(4, 424_242))
    read_sessions(path, info())
    note = (path.parent / "state" / "given-files.json").read_text()
    assert "424242" not in note
    about = path.stat()
    assert f"{about.st_ino}:{about.st_size}:{about.st_mtime_ns}" in note
