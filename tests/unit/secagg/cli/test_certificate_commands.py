"""`secagg enrol request` and `secagg pki`: a certificate from request to revocation."""

import json
import stat
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from secagg.cli import main
from secagg.pki.certificate_revocations import RevocationFile, read_revocation_lists
from secagg.transport.peer_identity import Role
from secagg.transport.tls import TLSIdentity, number_in_pem, read_certificates

EXIT_BAD_SETTINGS = 72
EXIT_STORAGE_FAILED = 55
EXIT_BAD_CERTIFICATE = 74
EXIT_STATE_DAMAGED = 77
EXIT_RESTORED_STATE = 78
NAME = "hospital-a"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call(*words, code=0):
        assert main([*words, "--json"]) == code, capsys.readouterr()
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return call


@pytest.fixture
def authority(run):
    run("pki", "ca", "pki", "--trust-domain", "example.org")
    (Path("tls")).mkdir()
    (Path("tls") / "ca.pem").write_bytes(Path("pki/ca.pem").read_bytes())


def revoked_by(file):
    trusted = read_certificates(Path("pki/ca.pem"))
    found = read_revocation_lists(
        RevocationFile(path=Path(file)), trusted, now=time.time()
    )
    return found[0].revoked


def request_certificate(run, name=NAME, directory="tls"):
    return run("enrol", "request", directory, "--name", name)


def signed(run, request, *words, holder=f"client/{NAME}", code=0, verb="sign"):
    return run(
        *("pki", verb, "pki", request["request"], "--as", holder),
        *("--fingerprint", request["fingerprint"], *words),
        code=code,
    )


def loaded(name=NAME, role=Role.CLIENT, directory="tls"):
    return TLSIdentity.in_directory(Path(directory), name, role=role)


def states(run):
    rows = run("pki", "list", "pki")["certificates"]
    return [(row["holder"], row["state"]) for row in rows]


def csr(path, key, *, algorithm=True, names=()):
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    if names:
        alternatives = x509.SubjectAlternativeName(names)
        builder = builder.add_extension(alternatives, critical=True)
    request = builder.sign(key, hashes.SHA256() if algorithm else None)
    Path(path).write_bytes(request.public_bytes(serialization.Encoding.PEM))


@pytest.mark.usefixtures("authority")
def test_a_key_stays_at_its_owner_and_its_certificate_works(run, json_answer):
    request = request_certificate(run)
    json_answer("enrol request", request)
    key = Path("tls") / f"{NAME}.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = key.read_bytes()
    made = signed(run, request)
    json_answer("pki sign", made)
    json_answer("pki list", run("pki", "list", "pki"))
    assert made["files"] == [f"tls/{NAME}.pem"]
    assert loaded().identity.uri == f"secagg://example.org/client/{NAME}"
    assert key.read_bytes() == before
    assert not list(Path("pki").glob(f"{NAME}*"))
    assert before.split(b"\n")[1] not in Path("pki/index.jsonl").read_bytes()
    assert states(run) == [(f"client/{NAME}", "live")]
    run("enrol", "request", "tls", "--name", NAME, code=EXIT_STORAGE_FAILED)


@pytest.mark.usefixtures("authority")
def test_only_the_key_of_a_request_is_used(run):
    wishes = [x509.UniformResourceIdentifier("secagg://example.org/server/aggregator")]
    key = ec.generate_private_key(ec.SECP256R1())
    csr("wish.csr", key, names=[*wishes, x509.DNSName("example.org")])
    shown = run(
        *("pki", "sign", "pki", "wish.csr", "--as", f"client/{NAME}"),
        code=EXIT_BAD_CERTIFICATE,
    )
    fingerprint = next(
        word for word in shown["error"]["message"].split() if word.startswith("sha256:")
    ).rstrip(",")
    request = {"request": "wish.csr", "fingerprint": fingerprint}
    signed(run, request)
    leaf = x509.load_pem_x509_certificate(Path(f"{NAME}.pem").read_bytes())
    [names] = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.value == f"secagg://example.org/client/{NAME}"


@pytest.mark.usefixtures("authority")
def test_a_request_without_a_confirmed_fingerprint_is_not_signed(run):
    request, other = request_certificate(run), request_certificate(run, "other")
    shown = run(
        *("pki", "sign", "pki", request["request"], "--as", f"client/{NAME}"),
        code=EXIT_BAD_CERTIFICATE,
    )
    assert request["fingerprint"] in shown["error"]["message"]
    swapped = {**request, "fingerprint": other["fingerprint"]}
    signed(run, swapped, code=EXIT_BAD_CERTIFICATE)
    assert states(run) == []


@pytest.mark.usefixtures("authority")
def test_invalid_requests_are_rejected(run):
    good = ec.generate_private_key(ec.SECP256R1())
    csr("good.csr", good)
    text = Path("good.csr").read_text()
    Path("damaged.csr").write_text(text.replace(text[-60:-50], "AAAAAAAAAA"))
    Path("empty.csr").write_bytes(b"")
    csr("small.csr", rsa.generate_private_key(65537, 1024))
    csr("curve.csr", ec.generate_private_key(ec.SECP521R1()))
    csr("edwards.csr", ed25519.Ed25519PrivateKey.generate(), algorithm=False)
    for name in ("damaged", "empty", "small", "curve", "edwards", "missing"):
        request = {"request": f"{name}.csr", "fingerprint": "sha256:"}
        signed(run, request, code=EXIT_BAD_CERTIFICATE)


@pytest.mark.usefixtures("authority")
def test_each_name_has_one_live_key(run):
    request = request_certificate(run)
    signed(run, request)
    stranger = request_certificate(run, directory="elsewhere")
    signed(run, stranger, code=EXIT_BAD_CERTIFICATE)  # the name has a live key
    signed(run, request, holder="client/b", code=EXIT_BAD_CERTIFICATE)
    run("pki", "client", "pki", NAME, code=EXIT_BAD_CERTIFICATE)
    assert not Path(f"pki/{NAME}.key").exists()
    for holder in ("client", "nurse/a", "client/not a name", "server/A"):
        signed(run, stranger, holder=holder, code=EXIT_BAD_CERTIFICATE)
    assert states(run) == [(f"client/{NAME}", "live")]


@pytest.mark.usefixtures("authority")
def test_a_renewed_certificate_names_the_same_client(run, json_answer):
    signed(run, request_certificate(run), "--days", "5")
    first = loaded()
    renewed = run("pki", "renew", "pki", NAME, "--output", f"tls/{NAME}.pem")
    json_answer("pki renew", renewed)
    again = loaded()  # which proves that the key still fits
    assert again.identity == first.identity
    assert again.not_valid_after > first.not_valid_after
    fresh = request_certificate(run, directory="new")
    words = ("pki", "renew", "pki", NAME, "--request", fresh["request"])
    run(*words, code=EXIT_BAD_CERTIFICATE)  # without a confirmation
    run(*words, "--fingerprint", fresh["fingerprint"])
    (Path("new") / "ca.pem").write_bytes(Path("pki/ca.pem").read_bytes())
    assert loaded(directory="new").identity == first.identity
    assert len(states(run)) == 3
    run("pki", "renew", "pki", "unknown", code=EXIT_BAD_CERTIFICATE)


def test_local_certificates_that_end_soon_are_renewed_with_new_keys(run):
    run("pki", "init", "pki", "--clients", "2", "--days", "20")
    files = sorted(Path("pki").glob("*.key"))
    before = {path: path.read_bytes() for path in files}
    assert run("pki", "renew", "pki", "--within", "10")["files"] == []
    written = run("pki", "renew", "pki")["files"]
    assert len(written) == 6
    renewed = {path.stem for path in files if path.read_bytes() != before[path]}
    assert renewed == {"server", "client-1", "client-2"}
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    loaded("server", Role.SERVER, "pki")
    loaded("client-2", directory="pki")
    assert run("pki", "renew", "pki")["files"] == []


@pytest.mark.usefixtures("authority")
def test_revoking_a_key_revokes_all_its_certificates_permanently(run, json_answer):
    request = request_certificate(run)
    signed(run, request)
    first = number_in_pem(loaded().certificate_chain)
    run("pki", "renew", "pki", NAME, "--output", f"tls/{NAME}.pem")
    second = number_in_pem(loaded().certificate_chain)
    other = request_certificate(run, "b")
    signed(run, other, holder="client/b")
    words = ("--reason", "keyCompromise", "--days", "30")
    taken = run("pki", "revoke", "pki", f"{second.serial:X}", *words)
    json_answer("pki revoke", taken)
    assert set(taken["serials"]) == {f"{each.serial:x}" for each in (first, second)}
    assert revoked_by(taken["file"]) == {first, second}
    assert states(run)[-1] == ("client/b", "live")
    signed(run, request, code=EXIT_BAD_CERTIFICATE)  # an old request, once more
    run("pki", "renew", "pki", NAME, code=EXIT_BAD_CERTIFICATE)
    assert run("pki", "revoke", "pki", NAME)["serials"] == []
    fresh = request_certificate(run, directory="new")
    signed(run, fresh)  # the same client is welcome again, with another key
    for word in ("unknown", "ff", "server/b"):
        run("pki", "revoke", "pki", word, code=EXIT_BAD_CERTIFICATE)
    Path(taken["file"]).unlink()
    run("pki", "revoke", "pki")
    assert revoked_by(taken["file"]) == {first, second}
    crl = x509.load_pem_x509_crl(Path(taken["file"]).read_bytes())
    assert crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 3
    reasons = {
        each.extensions.get_extension_for_class(x509.CRLReason).value.reason
        for each in crl
    }
    assert reasons == {x509.ReasonFlags.key_compromise}
    for wrong in (("--reason", "certificateHold"), ("--days", "399")):
        run("pki", "revoke", "pki", *wrong, code=EXIT_BAD_CERTIFICATE)


@pytest.mark.usefixtures("authority")
def test_an_index_older_than_its_revocation_list_is_rejected(run):
    run("pki", "revoke", "pki")
    before = Path("pki/index.jsonl").read_bytes()
    run("pki", "revoke", "pki")
    Path("pki/index.jsonl").write_bytes(before)
    run("pki", "list", "pki", code=EXIT_RESTORED_STATE)
    Path("pki/ca.crl").write_bytes(b"no list")
    run("pki", "list", "pki", code=EXIT_BAD_CERTIFICATE)


@pytest.mark.usefixtures("authority")
def test_an_authority_whose_key_others_may_read_issues_nothing(run):
    """As an issuer of credentials; a server's key may come from an orchestrator."""
    Path("pki/ca.key").chmod(0o640)
    run("pki", "client", "pki", NAME, code=EXIT_BAD_CERTIFICATE)
    Path("pki/ca.key").chmod(0o600)
    run("pki", "client", "pki", NAME)


def test_an_ambiguous_name_requires_its_role(run):
    run("pki", "ca", "pki")
    run("pki", "server", "pki", "both")
    Path("pki/both.key").rename("server.key")
    run("pki", "client", "pki", "both")
    run("pki", "revoke", "pki", "both", code=EXIT_BAD_CERTIFICATE)
    assert len(run("pki", "revoke", "pki", "server/both")["serials"]) == 1
    assert states(run) == [("server/both", "revoked"), ("client/both", "live")]


def published(number, serials, reason="unspecified"):
    row = {"at": 1, "list": number, "reason": reason, "revoked": serials}
    return json.dumps(row, separators=(",", ":"))


@pytest.mark.usefixtures("authority")
@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: lines[1:],  # another authority's, or of no authority
        lambda lines: [*lines, lines[-1]],
        lambda lines: [*lines, published(1, ["ab"])],
        lambda lines: [*lines, published(2, [])],  # the list before it is missing
        lambda lines: [*lines, published(1, [], reason="no reason")],
        lambda lines: [*lines, published(1, []).replace(":", ": ")],
        lambda lines: [*lines, "{}"],
    ],
)
def test_a_modified_index_prevents_issuing(run, damage):
    signed(run, request_certificate(run))
    path = Path("pki/index.jsonl")
    path.write_text("\n".join([*damage(path.read_text().splitlines()), ""]))
    run("pki", "list", "pki", code=EXIT_STATE_DAMAGED)
    run("pki", "renew", "pki", NAME, code=EXIT_STATE_DAMAGED)


def test_the_server_named_in_a_request_is_written_into_the_client_settings(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = ["enrol", "request", "tls", "--name", NAME]
    assert main([*words, "--server", "no port"]) == EXIT_BAD_SETTINGS
    assert not Path(f"tls/{NAME}.key").exists()
    assert main([*words, "--server", "sums.example.org:7400"]) == 0
    said = capsys.readouterr().out
    assert 'server = "sums.example.org:7400"' in said
    assert f'key = "{Path(f"tls/{NAME}.key").absolute()}"' in said.replace("\n", " ")
