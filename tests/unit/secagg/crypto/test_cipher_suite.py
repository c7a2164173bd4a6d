from secagg.crypto.cipher_suite import CipherSuite


def test_the_identifiers_and_key_sizes_are_those_of_the_protocol():
    assert [(suite.value, suite.mask_key_size) for suite in CipherSuite] == [
        (0x0001, 32),
        (0x0002, 16),
    ]
