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


def given(path, *sessions):
    source = FileInput(path, state_dir=path.parent / "state")
    for session in sessions:
        source.vector(session)
    return source


def test_the_next_process_knows_the_file_and_the_session_it_was_given_to(path):
    given(path, info())
    again = given(path)
    assert again.was_assigned("sums", 3)
    assert not again.was_assigned("sums", 4)
    assert not again.was_assigned("others", 3)


def test_another_file_in_its_place_is_another_one(path):
    given(path, info())
    other = path.with_name("other.npy")
    np.save(other, np.arange(4))
    about = path.stat()
    os.utime(other, ns=(about.st_atime_ns, about.st_mtime_ns))
    other.replace(path)
    assert not given(path).was_assigned("sums", 3)


def test_a_file_that_was_written_again_is_another_one(path):
    given(path, info())
    np.save(path, np.arange(4))
    os.utime(path, ns=(1, 1))
    assert not given(path).was_assigned("sums", 3)


def test_a_file_that_is_replaced_after_it_was_read_is_not_the_one_that_was_given(path):
    source = given(path)
    source.ready()
    np.save(path, np.ones(4))
    os.utime(path, ns=(1, 1))
    source.vector(info())  # the one that was read at the start
    assert not given(path).was_assigned("sums", 3)


def test_where_every_session_has_a_file_one_that_was_moved_away_was_given(tmp_path):
    pattern = tmp_path / "x-{session}.npy"
    np.save(tmp_path / "x-1.npy", np.zeros(4))
    given(pattern, info(1))
    np.save(tmp_path / "x-2.npy", np.zeros(4))
    assert given(pattern).was_assigned("sums", 1)
    assert not given(pattern).was_assigned("sums", 2)
    (tmp_path / "x-1.npy").unlink()
    assert given(pattern).was_assigned("sums", 1)


@pytest.mark.parametrize("damage", [b"", b"[]", b"{", b'{"sums/3": 7}'])
def test_a_note_that_cannot_be_read_lets_nothing_pass(path, damage):
    given(path, info())
    note = path.parent / "state" / "given-files.json"
    assert b"sums/3" in note.read_bytes()
    note.write_bytes(damage)
    assert not given(path).was_assigned("sums", 3)
    given(path, info())
    assert given(path).was_assigned("sums", 3)


def test_only_the_latest_files_are_kept_in_mind(path):
    source = given(path, *(info(number) for number in range(1, 71)))
    known = [number for number in range(1, 71) if source.was_assigned("sums", number)]
    assert known == list(range(7, 71))


def test_a_vector_that_the_session_cannot_take_was_not_given(path):
    """Zeros take its place; the next process must not call it given."""
    np.save(path, np.arange(5))
    with pytest.raises(InputError, match="5 entries"):
        given(path, info())
    assert not given(path).was_assigned("sums", 3)


def test_nothing_of_the_vector_is_in_the_note(path):
    np.save(path, np.full(4, 424_242))
    given(path, info())
    note = (path.parent / "state" / "given-files.json").read_text()
    assert "424242" not in note
    about = path.stat()
    assert f"{about.st_ino}:{about.st_size}:{about.st_mtime_ns}" in note
