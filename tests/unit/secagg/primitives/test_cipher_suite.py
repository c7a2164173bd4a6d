import pytest

from secagg.primitives.cipher_suite import CipherSuite, UnknownCipherSuiteError


def test_the_identifiers_and_key_sizes_are_those_of_the_protocol():
    assert [(suite.value, suite.mask_key_size) for suite in CipherSuite] == [
        (0x0001, 32),
        (0x0002, 16),
    ]


def test_a_suite_is_found_by_its_identifier():
    assert CipherSuite.from_id(0x0002) is CipherSuite.AES_128_CTR


@pytest.mark.parametrize("suite_id", [0, 3, 0x0011, 0xFFFF])
def test_an_unknown_suite_is_refused_by_name(suite_id):
    with pytest.raises(UnknownCipherSuiteError, match=f"0x{suite_id:04x}"):
        CipherSuite.from_id(suite_id)
