import gc

import pytest

from secagg.runtime.garbage import STAYING, freeze_loaded, infrequent_collection


def test_garbage_is_looked_for_as_before_when_a_command_has_ended():
    usual = gc.get_threshold()
    with infrequent_collection():
        assert gc.get_threshold()[0] > 100 * usual[0]
    assert gc.get_threshold() == usual
    with pytest.raises(KeyboardInterrupt), infrequent_collection():
        raise KeyboardInterrupt
    assert gc.get_threshold() == usual


def test_a_program_that_stays_looks_for_garbage_but_not_in_what_has_loaded():
    usual, kept = gc.get_threshold(), gc.get_freeze_count()
    loaded = [[] for _ in range(1000)]
    try:
        with infrequent_collection():
            freeze_loaded()
            assert gc.get_threshold() == STAYING
            assert gc.get_freeze_count() >= kept + len(loaded)
        assert gc.get_threshold() == usual
    finally:
        gc.unfreeze()
