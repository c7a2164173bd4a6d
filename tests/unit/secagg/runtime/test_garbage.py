import gc

import pytest

from secagg.runtime.garbage import STAYING, freeze_loaded, infrequent_collection


def test_garbage_collection_is_restored_after_a_command():
    usual = gc.get_threshold()
    with infrequent_collection():
        assert gc.get_threshold()[0] > 100 * usual[0]
    assert gc.get_threshold() == usual
    with pytest.raises(KeyboardInterrupt), infrequent_collection():
        raise KeyboardInterrupt
    assert gc.get_threshold() == usual


def test_loaded_objects_are_frozen_and_garbage_collection_restored():
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
