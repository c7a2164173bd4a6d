import pytest

from secagg.errors import ErrorCode, ServiceError
from secagg.transport.peer_identity import PeerIdentity, Role


@pytest.mark.parametrize("scheme", ["secagg", "spiffe"])
def test_both_spellings_name_the_same_party(scheme):
    uri = f"{scheme}://td.example/client/phone_7.a-B"
    assert PeerIdentity.from_uris([uri]) == PeerIdentity(
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
def test_anything_else_names_no_client(uris):
    with pytest.raises(ServiceError) as caught:
        PeerIdentity.from_uris(uris)
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE


def test_the_longest_names_are_names():
    assert len(PeerIdentity("td.example", Role.CLIENT, "a" * 255).name) == 255
    # 1 + 60 + 1 + ... fill a DNS name to its last character.
    domain = ".".join(["x" * 56] * 3 + ["y" * 57])
    assert len(PeerIdentity(domain, Role.SERVER, "a").dns_name) == 253
    with pytest.raises(ServiceError, match="too long"):
        PeerIdentity(domain, Role.SERVER, "ab")


@pytest.mark.parametrize(("count", "is_cut"), [(3, False), (4, True)])
def test_a_complaint_shows_three_uris_and_that_there_are_more(count, is_cut):
    with pytest.raises(ServiceError) as caught:
        PeerIdentity.from_uris(f"https://{n}.example" for n in range(count))
    assert ("..." in str(caught.value)) == is_cut


def test_an_aggregator_is_spelled_a_second_time_as_a_dns_name():
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
def test_a_server_has_a_name_that_dns_can_spell_in_one_way(trust_domain, name):
    with pytest.raises(ServiceError) as caught:
        PeerIdentity(trust_domain, Role.SERVER, name)
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE
    if name != "a" * 64:
        PeerIdentity(trust_domain, Role.CLIENT, name)


@pytest.mark.parametrize("rest", ["", ".x", "x" * 40])
def test_a_client_cannot_be_named_like_an_aggregator(rest):
    spelled = PeerIdentity("td.example", Role.SERVER, "agg").dns_name
    with pytest.raises(ServiceError, match="reserved"):
        PeerIdentity("td.example", Role.CLIENT, spelled.upper() + rest)
