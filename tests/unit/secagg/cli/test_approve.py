"""`secagg plan --approve`: what is checked, and the hash that is printed."""

import json
from dataclasses import replace
from hashlib import sha256

import pytest
from secagg_testing.cohorts import offer_of, parameters_for

from secagg.cli import main
from secagg.cli.failures import exit_code_of
from secagg.distributed_dp import NoisyTask, plan
from secagg.errors import ErrorCode, RemoteProtocolError


@pytest.fixture(name="parameters", scope="module")
def _parameters():
    made = plan(
        clients=6,
        dimension=16,
        l2_clip=1.0,
        epsilon=2.0,
        delta=1e-5,
        scale_factor=8.0,
        accountant="mixture-simple",
        min_survivors=4,
        steps=2,
        spare=1,
    )
    return NoisyTask.from_plan(
        made, parameters_for(6, threshold=4, dimension=1)
    ).parameters


def offer_file(parameters, path):
    offer = offer_of(
        parameters,
        aggregator="sums.example",
        task_id="heights",
        server_nonce=bytes(range(32)),
        session_end=1_900_000_000,
    )
    path.write_bytes(offer.encode())
    return str(path)


def altered(parameters, **changes):
    block = json.loads(parameters.noise_block) | changes
    text = json.dumps(block, sort_keys=True, separators=(",", ":"))
    return replace(parameters, noise_block=text.encode())


def approved(capsys, *words):
    assert main(["plan", *words]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def refused(capsys, file, code):
    assert main(["plan", "--approve", str(file)]) == exit_code_of(code)
    return " ".join(capsys.readouterr().err.split())


def test_an_offer_is_checked_and_its_hash_printed(
    parameters, tmp_path, capsys, json_answer
):
    offer = offer_file(parameters, tmp_path / "offer.bin")
    for words in (["--approve", offer, "--json"], ["--json", "--approve", offer]):
        result = approved(capsys, *words)
        json_answer("plan approve", result)
        assert result["approved_hash"] == sha256(parameters.noise_block).hexdigest()
        assert 1.9 < result["epsilon"] <= result["claimed_epsilon"] <= 2.0
        assert (result["participations"], result["spare"]) == (2, 1)
        assert "in at most 3 sessions" in result["privacy_unit"]
        assert result["accountant"] == "mixture-simple"
        assert (result["status"], result["proof"]) == ("certified", "own")
    assert main(["plan", "--approve", offer]) == 0
    printed = capsys.readouterr().out
    assert sha256(parameters.noise_block).hexdigest() in printed
    assert "(certified (own proof), mixture-simple)" in printed


def test_settings_of_a_server_are_planned_and_checked(tmp_path, capsys, settings_texts):
    settings = tmp_path / "server.toml"
    settings.write_text(settings_texts["server"])
    result = approved(capsys, "--approve", str(settings), "--json")
    assert result["epsilon"] <= result["claimed_epsilon"] == 8.0
    assert len(result["approved_hash"]) == 64


def test_a_false_privacy_claim_is_not_approved(parameters, tmp_path, capsys):
    offer = offer_file(altered(parameters, epsilon=1.5), tmp_path / "offer.bin")
    assert "claims 1.5" in refused(capsys, offer, ErrorCode.POLICY_VIOLATION)


def test_an_offer_too_expensive_to_check_is_rejected_first(parameters):
    block = json.loads(parameters.noise_block)
    huge = altered(
        parameters,
        accountant="mixture-contour",
        mechanism=block["mechanism"]
        | {"scale_factor": 2.0**24, "linf_bound": f"{2**24}/1"},
    )
    # Other contradictions, here of the modulus, come later.
    with pytest.raises(RemoteProtocolError, match="cells to check"):
        NoisyTask.from_parameters(replace(huge, modulus=1 << 12))


def test_an_invalid_offer_or_one_without_noise_is_rejected(
    parameters, tmp_path, capsys
):
    exact = offer_file(
        replace(parameters, noise_block=b"", noise_layers=0), tmp_path / "exact.bin"
    )
    assert "exact sums" in refused(capsys, exact, ErrorCode.BAD_SETTINGS)
    large = tmp_path / "large.bin"
    large.write_bytes(bytes(1 << 17))
    assert "is not an offer" in refused(capsys, large, ErrorCode.BAD_ENCODING)
    large.write_text("an essay")
    complaint = refused(capsys, large, ErrorCode.BAD_ENCODING)
    assert "is not an offer" in complaint
    assert "whose name ends in .toml" in complaint
    missing = tmp_path / "missing.bin"
    assert "cannot be read" in refused(capsys, missing, ErrorCode.BAD_SETTINGS)
