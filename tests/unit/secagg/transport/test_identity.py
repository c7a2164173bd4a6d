import pytest

from secagg.errors import ErrorCode, ServiceError
from secagg.transport.identity import PeerIdentity, Role


@pytest.mark.parametrize("scheme", ["secagg", "spiffe"])
def test_both_spellings_name_the_same_party(scheme):
    uris = ["https://unrelated.example/", f"{scheme}://td.example/client/phone_7.a-B"]
    assert PeerIdentity.from_uris(uris) == PeerIdentity(
        "td.example", Role.CLIENT, "phone_7.a-B"
    )


def test_the_issued_spelling_reads_back():
    identity = PeerIdentity("td.example", Role.SERVER, "aggregator")
    assert PeerIdentity.from_uris([identity.uri]) == identity


@pytest.mark.parametrize(
    "uris",
    [
        [],
        ["https://td.example/client/a"],
        ["secagg://td.example/client/a", "secagg://td.example/client/b"],
        ["secagg://td.example/client/a", "spiffe://td.example/client/a"],
        ["secagg://td.example/admin/a"],
        ["secagg://td.example/client/"],
        ["secagg://td.example/client/a/b"],
        ["secagg:///client/a"],
        ["secagg://td.example/client/a\n"],
        ["secagg://td.example/client/.."],
        ["secagg://td.example/client/a%2Fb"],
        ["secagg://TD.example/client/a"],
        ["secagg://user@td.example/client/a"],
        ["secagg://td.example:80/client/a"],
        ["secagg://td.example/client/" + "a" * 256],
        ["secagg://td.example/client/é"],
        ["SECAGG://td.example/client/a"],
    ],
)
def test_anything_else_names_nobody(uris):
    with pytest.raises(ServiceError) as caught:
        PeerIdentity.from_uris(uris)
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE
