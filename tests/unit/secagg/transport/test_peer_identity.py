import pytest

from secagg.errors import ErrorCode, ServiceError
from secagg.transport.peer_identity import PeerIdentity, Role


@pytest.mark.parametrize("scheme", ["secagg", "spiffe"])
def test_both_uri_schemes_name_the_same_party(scheme):
    uri = f"{scheme}://td.example/client/phone_7.a-B"
    assert PeerIdentity.from_uris([uri]) == PeerIdentity(
        "td.example", Role.CLIENT, "phone_7.a-B"
    )


def test_the_issued_uri_round_trips():
    identity = PeerIdentity("td.example", Role.SERVER, "aggregator")
    assert PeerIdentity.from_uris([identity.uri]) == identity


@pytest.mark.parametrize(
    "uris",
    [
        [],
        ["https://td.example/client/a"],
        ["https://unrelated.example/", "secagg://td.example/client/a"],
        ["secagg://td.example/client/a", "secagg://td.example/client/a"],
        ["secagg://td.example/client/a\0.evil"],
        ["secagg://td.example/client/a\0"],
        ["secagg://td.example\0.evil/client/a"],
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
def test_an_invalid_uri_names_no_client(uris):
    with pytest.raises(ServiceError) as caught:
        PeerIdentity.from_uris(uris)
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE


def test_names_up_to_the_maximum_length_are_accepted():
    assert len(PeerIdentity("td.example", Role.CLIENT, "a" * 255).name) == 255
    # 1 + 60 + 1 + ... fill a DNS name to its last character.
    domain = ".".join(["x" * 56] * 3 + ["y" * 57])
    assert len(PeerIdentity(domain, Role.SERVER, "a").dns_name) == 253
    with pytest.raises(ServiceError, match="too long"):
        PeerIdentity(domain, Role.SERVER, "ab")


@pytest.mark.parametrize(("count", "is_cut"), [(3, False), (4, True)])
def test_an_error_lists_at_most_three_uris(count, is_cut):
    with pytest.raises(ServiceError) as caught:
        PeerIdentity.from_uris(f"https://{n}.example" for n in range(count))
    assert ("..." in str(caught.value)) == is_cut


def test_an_aggregator_has_a_dns_name():
    identity = PeerIdentity("td.example", Role.SERVER, "aggregator")
    assert identity.dns_name == "aggregator.td.example.server.secagg.internal"


@pytest.mark.parametrize(
    ("trust_domain", "name"),
    [
        ("td.example", "a.b"),  # else two identities share a DNS name
        ("td.example", "A"),  # DNS does not tell it from a
        ("td.example", "a_b"),
        ("td.example", "-a"),
        ("td.example", "a-"),
        ("td.example", "a" * 64),
        ("td..example", "a"),
        (".td", "a"),
        ("td-.example", "a"),
        ("x" * 64, "a"),
        (".".join(["x" * 60] * 4), "a"),
    ],
)
def test_a_server_name_must_be_a_canonical_dns_label(trust_domain, name):
    with pytest.raises(ServiceError) as caught:
        PeerIdentity(trust_domain, Role.SERVER, name)
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE
    if name != "a" * 64:
        PeerIdentity(trust_domain, Role.CLIENT, name)


@pytest.mark.parametrize("rest", ["", ".x", "x" * 40])
def test_a_client_name_must_not_imitate_an_aggregator(rest):
    spelled = PeerIdentity("td.example", Role.SERVER, "agg").dns_name
    with pytest.raises(ServiceError, match="reserved"):
        PeerIdentity("td.example", Role.CLIENT, spelled.upper() + rest)
