import copy
import dataclasses
import json
import pickle
import traceback

import pytest

from secagg.crypto.secret_bytes import SecretBytes

CONTENT = b"\x00correct horse battery staple\xff"


def test_reveal_returns_the_content():
    secret = SecretBytes(CONTENT)
    assert secret.reveal() == CONTENT
    assert len(secret) == len(CONTENT)


def test_no_form_of_printing_reveals_the_content():
    @dataclasses.dataclass
    class State:
        seed: SecretBytes

    secret = SecretBytes(CONTENT)
    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret:>60}",
        f"{secret!r}",
        "{}".format(secret),  # noqa: UP032 - this is another code path
        "%s %r" % (secret, secret),  # noqa: UP031 - and so is this
        repr([secret]),
        repr(State(secret)),
    ]
    for text in shown:
        assert "redacted" in text
        for leak in ("correct", CONTENT.hex(), "99, 111, 114"):
            assert leak not in text


def test_an_exception_with_a_secret_does_not_print_its_content():
    error = ValueError("seed", SecretBytes(CONTENT))
    assert "correct" not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("copier", [pickle.dumps, copy.copy, copy.deepcopy])
def test_secrets_are_neither_pickled_nor_copied(copier):
    with pytest.raises(TypeError, match="not be copied or pickled"):
        copier(SecretBytes(CONTENT))


def test_secrets_do_not_convert_to_bytes_or_json_by_accident():
    with pytest.raises(TypeError):
        bytes(SecretBytes(CONTENT))
    with pytest.raises(TypeError):
        json.dumps(SecretBytes(CONTENT))
    with pytest.raises(TypeError):
        hash(SecretBytes(CONTENT))


def test_comparison_is_by_content_and_only_with_secrets():
    assert SecretBytes(CONTENT) == SecretBytes(CONTENT)
    assert SecretBytes(CONTENT) != SecretBytes(CONTENT[:-1])
    assert SecretBytes(CONTENT) != SecretBytes(CONTENT[:-1] + b"\xfe")
    assert SecretBytes(CONTENT) != CONTENT


def test_wiping_overwrites_and_a_wiped_secret_cannot_be_used():
    secret = SecretBytes(CONTENT)
    held = secret._data
    secret.wipe()
    assert held == bytes(len(CONTENT))
    with pytest.raises(ValueError, match="wiped"):
        secret.reveal()
    with pytest.raises(ValueError, match="wiped"):
        assert secret == SecretBytes(bytes(len(CONTENT)))


def test_the_content_is_copied_and_immutable():
    source = bytearray(CONTENT)
    secret = SecretBytes(source)
    source[0] = 7
    assert secret.reveal() == CONTENT
    with pytest.raises(AttributeError, match="immutable"):
        secret._data = bytearray(b"other")


def test_a_wiped_secret_cannot_be_used_again():
    secret = SecretBytes(CONTENT)
    secret.wipe()
    with pytest.raises(AttributeError, match="immutable"):
        secret._wiped = False
    with pytest.raises(ValueError, match="wiped"):
        secret.reveal()
