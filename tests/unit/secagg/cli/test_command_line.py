import json
import logging
import math
import os
import shutil
import socket
import stat
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from secagg_testing.cohorts import parameters_for

from secagg import distributed_dp
from secagg.cli import main
from secagg.cli.failures import exit_code_of, to_json_line
from secagg.cli.output import Output
from secagg.cli.plan import error_figure
from secagg.cli.server import _graph_of
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.graphs.choice import failure_bounds_of
from secagg.protocol.profiles import HonestCuriousParameters
from secagg.storage.spool import MIN_FREE_BYTES

CONFIG = Path(__file__).parents[4] / "deploy" / "config"
VERBS = [
    ["demo"],
    ["server"],
    ["client"],
    ["simulate"],
    ["load"],
    ["conformance", "drive"],
    ["plan"],
    ["graph"],
    ["pki", "init"],
    ["pki", "ca"],
    ["pki", "server"],
    ["pki", "client"],
    ["pki", "sign"],
    ["pki", "renew"],
    ["pki", "revoke"],
    ["pki", "list"],
    ["enrol", "request"],
    ["pki", "enrol", "init"],
    ["pki", "enrol", "sign"],
    ["pki", "enrol", "renew"],
    ["pki", "enrol", "revoke"],
    ["pki", "enrol", "list"],
    ["pki", "identity", "new"],
    ["pki", "identity", "renew"],
    ["sessions", "verify"],
    ["sessions", "list"],
    ["sessions", "show"],
    ["sessions", "watch"],
    ["sessions", "abort"],
    *(
        ["tasks", verb]
        for verb in ("add", "apply", "list", "show", "pause", "resume", "stop")
    ),
    ["status"],
    ["budget"],
    ["drain"],
    ["doctor"],
    ["state", "check"],
    *(["two-aggregators", part] for part in ("leader", "helper", "client")),
]


@pytest.fixture(autouse=True)
def restored_logging():
    logger = logging.getLogger("secagg")
    before = list(logger.handlers), logger.level
    yield
    logger.handlers[:], logger.level = before


def last_line(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def error_of(capsys):
    return last_line(capsys)["error"]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_command_has_help_with_an_example(verb, capsys):
    assert main([*verb, "--help"]) == 0
    assert f"Example: secagg {' '.join(verb)}" in capsys.readouterr().out


def test_without_a_command_help_is_printed_and_an_unknown_one_exits_with_2(capsys):
    assert main([]) == 2
    assert "simulate" in capsys.readouterr().out
    assert main(["simulat", "--json"]) == 2
    assert error_of(capsys)["exit_code"] == 2


def test_version_is_that_of_the_distribution(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip().count(".") == 2


def test_exit_codes_are_one_to_one_with_error_codes():
    codes = [exit_code_of(code) for code in ErrorCode]
    assert len(set(codes)) == len(codes)
    assert not {0, 1, 2, 129, 130, 143} & set(codes)
    assert exit_code_of(ErrorCode.BAD_SETTINGS) == 72


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["simulate", "--clients", "1"], "--clients"),
        (["simulate", "--modulus-bits", "63"], "--modulus-bits"),
        (["plan", "--clients", "ten"], "--clients"),
        (["pki", "init"], "DIR"),
    ],
)
def test_a_usage_error_names_the_option(words, option, capsys):
    assert main([*words, "--json"]) == 2
    assert option in error_of(capsys)["message"]


# --- simulate -----------------------------------------------------------------------


def test_simulate_prints_the_promised_keys(capsys, json_answer):
    words = [
        "--clients",
        "12",
        "--dimension",
        "40",
        "--dropout-rate",
        "0.25",
        "--seed",
        "7",
        "--json",
    ]
    assert main(["simulate", *words]) == 0
    result = last_line(capsys)
    json_answer("simulate", result)
    assert result["exact"] is True
    assert result["clients_lost"] == 3
    assert set(result["client_cpu_seconds"]) == {"mean", "max"}
    assert set(result["server_cpu_seconds"]) >= {"share_keys", "unmasking"}
    for key in ("bytes_up", "bytes_down", "peak_rss_bytes"):
        assert result[key] > 0


def test_simulate_on_a_ring_of_a_given_degree(capsys):
    words = [
        "--clients",
        "20",
        "--dimension",
        "5",
        "--degree",
        "8",
        "--threshold",
        "4",
        "--json",
    ]
    assert main(["simulate", *words]) == 0
    assert last_line(capsys)["degree"] == 8


def test_simulate_with_too_many_losses_is_a_typed_abort(capsys):
    words = [
        "--clients",
        "10",
        "--dimension",
        "5",
        "--dropout-rate",
        "0.9",
        "--json",
    ]
    code = main(["simulate", *words])
    error = error_of(capsys)
    assert code == error["exit_code"]
    assert error["name"] in {"ROSTER_TOO_SMALL", "U2_TOO_SMALL", "TOO_FEW_ANSWERS"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["--degree", "5"], "degree"), (["--threshold", "101"], "threshold")],
)
def test_invalid_session_options_are_rejected_before_any_output(
    capsys, words, expected
):
    assert main(["simulate", *words]) == exit_code_of(ErrorCode.BAD_SETTINGS)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert expected in captured.err


def test_an_unknown_profile_is_refused_by_name(capsys):
    assert main(["simulate", "--profile", "no-such-profile", "--json"]) in (12, 72)
    assert "no-such-profile" in error_of(capsys)["message"]


@pytest.mark.parametrize("extra", [[], ["--xnoise"]], ids=["plain", "xnoise"])
def test_a_simulation_with_drawn_neighbours_is_labelled_experimental(capsys, extra):
    words = ["simulate", "--clients", "30", "--dimension", "16", "--seed", "4"]
    words += ["--profile", "malicious-server-sparse", "--degree", "16", *extra]
    words += ["--dropout-rate", "0.1"]
    assert main([*words, "--json"]) == 0
    result = last_line(capsys)
    assert result["exact"]
    assert result["is_experimental"]
    assert (result["threshold"], result["quorum"], result["unseen"]) == (2, 27, 0)
    assert "choose_edges" in result["server_cpu_seconds"]
    words[2] = "20"  # for people too
    assert main(words) == 0
    assert "experimental and unreviewed" in capsys.readouterr().out


def test_a_simulation_chooses_the_number_of_drawn_neighbours(capsys):
    words = ["simulate", "--clients", "20", "--dimension", "16", "--seed", "4"]
    words += ["--profile", "malicious-server-sparse", "--dropout-rate", "0.1", "--json"]
    assert main(words) == 0
    result = last_line(capsys)
    assert result["exact"]
    assert (result["degree"], result["threshold"]) == (6, 2)


@pytest.mark.parametrize("extra", [[], ["--xnoise"]], ids=["plain", "xnoise"])
def test_a_simulation_of_a_server_that_lies_runs_all_rounds_of_its_profile(
    capsys, extra
):
    words = ["simulate", "--clients", "12", "--dimension", "16", "--seed", "4"]
    words += ["--profile", "malicious-server", "--dropout-rate", "0.2", *extra]
    assert main([*words, "--json"]) == 0
    result = last_line(capsys)
    assert result["exact"]
    assert result["profile"] == "malicious-server"
    assert result["quorum"] == result["threshold"] == 7
    assert "consistency" in result["server_cpu_seconds"]
    assert result["client_state_bytes"] > 12 * 3 * 32


def test_a_simulation_with_layers_reports_required_and_present_noise(
    capsys, json_answer
):
    words = ["simulate", "--clients", "20", "--dimension", "16", "--xnoise"]
    assert main([*words, "--dropout-rate", "0.2", "--seed", "5", "--json"]) == 0
    result = last_line(capsys)
    json_answer("simulate with layers of noise", result)
    assert result["exact"]
    ratio = Fraction(result["noise_present"]) / Fraction(result["noise_required"])
    assert 1.0 <= ratio <= 1.05
    assert result["noise_certificate"]["survivors"] == result["survivors"]


# --- plan ---------------------------------------------------------------------------

PLAN = [
    "plan",
    "--clients",
    "50",
    "--dimension",
    "64",
    "--l2-clip",
    "1",
    "--delta",
    "1e-5",
]
PLAN_KEYS = {
    "noise_variance",
    "local_noise_variance",
    "share_at_smallest",
    "share_at_largest",
    "noise_overhead",
    "linf_bound",
    "loss_fraction",
    "accountants_tried",
    "in_words",
    "scale_factor",
    "modulus",
    "expected_mse",
    "gaussian_mse",
    "wrap_probability",
    "accountant",
    "epsilon_server",
    "epsilon_model_reader",
    "upload_bytes",
}


def test_plan_prints_the_promised_keys(capsys, json_answer):
    words = [
        "--epsilon",
        "2",
        "--bits",
        "16",
        "--mechanism",
        "skellam",
        "--json",
    ]
    assert main([*PLAN, *words]) == 0
    result = last_line(capsys)
    json_answer("plan", result)
    assert set(result) >= PLAN_KEYS
    assert result["modulus"] == 1 << 16
    assert result["epsilon_server"] <= 2.0
    assert result["expected_mse"] >= result["gaussian_mse"]


def test_plan_divides_the_noise_as_requested(capsys):
    words = ["--epsilon", "2", "--mechanism", "skellam", "--json"]
    rule = ["--min-survivors", "30", "--loss-fraction", "0.1"]
    rule += ["--colluder-fraction", "0.2", "--ladder", "4"]
    assert main([*PLAN, *words, *rule]) == 0
    result = last_line(capsys)
    assert (result["loss_fraction"], result["colluder_fraction"]) == ("1/10", "1/5")
    # 30 clients: none may be lost, 6 collude. 50: 5 and 10; the rest is the user.
    variance = result["noise_variance"]
    assert result["share_at_smallest"] == pytest.approx(variance / 23, rel=1e-6)
    assert result["share_at_largest"] == pytest.approx(variance / 34, rel=1e-4)
    assert result["local_noise_variance"] == result["share_at_largest"]
    assert result["noise_shares_counted"] == 22  # of 31 clients: 1 lost, 7 colluding
    assert result["noise_overhead"] >= 1.0


def test_plan_counts_a_randomiser_and_names_all_three_adversaries(capsys):
    words = ["plan", "--clients", "50", "--dimension", "3", "--l2-clip", "2"]
    words += ["--epsilon", "2", "--delta", "1e-5", "--steps", "5"]
    layer = ["--randomiser", "privunit2", "--randomiser-epsilon", "4"]
    assert main([*words, *layer, "--json"]) == 0
    result = last_line(capsys)
    # In three dimensions the cosine kept is tanh(epsilon / 4), in closed form.
    sent = 2.0 / math.tanh(1.0)
    assert result["randomiser_output_norm"] == pytest.approx(sent, rel=1e-9)
    assert result["l2_clip"] == result["randomiser_output_norm"]
    assert result["randomiser_mse"] == pytest.approx(50 / 3 * sent**2, rel=1e-9)
    both = result["estimate_mse"] + result["randomiser_mse"]
    assert result["randomised_estimate_mse"] == both
    assert result["randomiser_total_epsilon"] == 20.0
    assert 3.99 < result["randomiser_exact_epsilon"] <= 4.0
    broken, server, readers = result["adversaries"]
    assert "epsilon 4 per session, 20 together, no delta" in broken
    assert "epsilon 2, delta 1e-05" in server
    assert "epsilon 2, delta 1e-05" in readers
    assert main([*words, *layer]) == 0
    shown = capsys.readouterr().out
    assert broken in shown
    assert "error of both layers" in shown
    # Without the layer the same three stand there, and the first is told nothing.
    assert main([*words, "--json"]) == 0
    plain = last_line(capsys)
    assert plain["randomiser"] is None
    assert "nothing is promised" in plain["adversaries"][0]
    assert plain["gaussian_mse"] < result["gaussian_mse"]


def test_sums_of_randomised_vectors_need_fewer_bits(capsys):
    # All vectors may agree, and what is sent of them does not: a thousand long vectors
    # need a modulus for some forty, and their own sum.
    words = ["plan", "--clients", "1000", "--dimension", "1000", "--l2-clip", "1"]
    words += ["--epsilon", "8", "--delta", "1e-6", "--json"]
    words += ["--mechanism", "skellam", "--scale-factor", "16"]
    layer = ["--randomiser", "privunit2", "--randomiser-epsilon", "10"]
    assert main([*words, *layer]) == 0
    given = last_line(capsys)
    sent = given["randomiser_output_norm"]
    assert given["randomised_sum_norm"] < 0.14 * 1000 * sent
    # The chance of a longer sum is part of what may wrap.
    assert 0.01 / 1024 < given["wrap_probability"] < 0.01
    worst = ["--l2-clip", str(sent), "--sum-l2-norm", str(1000 * sent)]
    assert main([*words, *worst]) == 0
    agreeing = last_line(capsys)
    assert agreeing["bits"] >= given["bits"] + 2
    # Noise and privacy do not know of it.
    assert agreeing["noise_variance"] == given["noise_variance"]
    # Told how long the true sum is: what is sent is longer than that.
    assert main([*words, *layer, "--sum-l2-norm", "40"]) == 0
    told = last_line(capsys)["randomised_sum_norm"]
    assert 40.0 + sent < told < given["randomised_sum_norm"]


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--randomiser", "privunit2"], "needs --randomiser"),
        (["--randomiser-epsilon", "4"], "needs --randomiser"),
        (
            ["--randomiser", "scalar-dp", "--randomiser-epsilon", "4"],
            "--dimension must",
        ),
        (
            ["--randomiser", "privunit2", "--randomiser-epsilon", "1e9"],
            "--randomiser-epsilon must lie in",
        ),
        (
            [
                *("--randomiser", "separated", "--randomiser-epsilon", "4"),
                *("--mechanism", "skellam-counts", "--max-nonzero", "1"),
            ],
            "whole ones",
        ),
        (
            [
                *("--randomiser", "privunit-inf", "--randomiser-epsilon", "4"),
                *("--mechanism", "gaussian", "--scale-factor", "100"),
            ],
            "trusted party",
        ),
    ],
)
def test_plan_refuses_a_randomiser_that_cannot_work(words, match, capsys):
    code = exit_code_of(ErrorCode.BAD_SETTINGS)
    assert main([*PLAN, "--epsilon", "2", *words]) == code
    assert match in capsys.readouterr().err


def test_plan_prints_warnings_on_secret_selection(capsys):
    assert main([*PLAN, "--epsilon", "2", "--selection-rate", "1/2"]) == 0
    shown = capsys.readouterr().out
    assert "must be abandoned" in shown
    assert "A vector that lies in a file is computed in either case" in shown


def test_plan_prints_how_many_entries_wrap(capsys):
    assert main([*PLAN, "--epsilon", "2", "--mechanism", "skellam"]) == 0
    assert "expected per sum" in capsys.readouterr().out


def test_plan_accepts_the_adjacency_and_the_norm_of_the_sum(capsys):
    words = [*PLAN, "--epsilon", "2", "--mechanism", "skellam", "--json"]
    results = []
    for rest in (
        ["--scale-factor", "200"],
        ["--scale-factor", "200", "--adjacency", "replace-one"],
        ["--scale-factor", "200", "--sum-l2-norm", "1"],
        ["--scale-factor", "200", "--bits", "8", "--max-wrap-probability", "1"],
    ):
        assert main([*words, *rest]) == 0
        results.append(last_line(capsys))
    plain, replaced, shorter, wrapped = results
    assert (plain["adjacency"], replaced["adjacency"]) == ("zero-out", "replace-one")
    assert replaced["noise_variance"] > 3.9 * plain["noise_variance"]
    assert shorter["bits"] < plain["bits"]
    assert wrapped["wrap_probability"] > 0.01


def test_plan_states_the_next_step_if_no_accountant_has_a_theorem(capsys):
    words = [*PLAN, "--epsilon", "2", "--adjacency", "replace-one", "--json"]
    assert main(words) == exit_code_of(ErrorCode.BAD_SETTINGS)
    error = error_of(capsys)
    assert "no promise under replace-one" in error["message"]
    assert "the mechanism skellam" in error["next_step"]
    assert main([*words, "--adjacency", "remove"]) == exit_code_of(
        ErrorCode.BAD_SETTINGS
    )
    assert "zero-out" in error_of(capsys)["message"]


def test_plan_rejects_sampling_with_noise_shares_and_states_the_next_step(capsys):
    words = ["--epsilon", "2", "--sampling-rate", "0.1", "--json"]
    assert main([*PLAN, *words]) == exit_code_of(ErrorCode.BAD_SETTINGS)
    message = error_of(capsys)["message"]
    assert "reveal who took part" in message
    assert "State --selection-rate" in message


@pytest.mark.parametrize(
    ("words", "said", "next_step"),
    [
        ([], "--l2-clip is missing", "how long one client's vector may be"),
        (["--l2-clip", "0"], "--l2-clip must be greater than 0, got 0.0", "such as"),
        (["--l2-clip", "1", "--bits", "99"], "--bits must be between 1 and 62", "62"),
        (["--l2-clip", "1", "--min-survivors", "60"], "--min-survivors must", "50"),
        (["--l2-clip", "1", "--bits", "2"], "a modulus of 2 bits", "value of --bits"),
        (
            ["--l2-clip", "1", "--selection-rate", "3/2"],
            "--selection-rate must be above 0 and at most 1, got 3/2",
            "value that works: 1",
        ),
        (
            ["--l2-clip", "1", "--mechanism", "ddgauss", "--ladder", "4"],
            "--ladder is for noise whose layers add up",
            "0, or the mechanism skellam",
        ),
        (
            [
                *("--l2-clip", "1", "--selection-rate", "1/10"),
                *("--accountant", "mixture-simple"),
            ],
            "mixture-simple counts no selection",
            "value of --selection-rate that works: 1",
        ),
        (
            [
                *("--l2-clip", "1", "--steps", "10", "--dimension", "65536"),
                *("--accountant", "mixture-contour"),
            ],
            "mixture-contour covers a single release",
            "Correct that option",
        ),
    ],
)
def test_plan_errors_name_options_and_the_valid_value_once(
    words, said, next_step, capsys
):
    asked = ["plan", "--clients", "50", "--dimension", "64", "--epsilon", "1"]
    assert main([*asked, "--delta", "1e-5", *words, "--json"]) == exit_code_of(
        ErrorCode.BAD_SETTINGS
    )
    error = error_of(capsys)
    assert error["message"].startswith(said)
    assert "nearest" not in error["message"]
    assert next_step in error["next_step"]


def test_plan_counts_a_secret_selection_against_both_adversaries(capsys):
    words = [*PLAN, "--epsilon", "2", "--mechanism", "skellam", "--json"]
    words += ["--accountant", "skellam-gdp"]
    results = []
    for rest in ([], ["--selection-rate", "1/10"], ["--selection-rate", "0.1"]):
        assert main([*words, "--steps", "5", *rest]) == 0
        results.append(last_line(capsys))
    everyone, tenth, same = results
    for each in results:
        each.pop("accountants_tried")  # they took other times
    assert tenth == same
    assert (everyone["selection_rate"], tenth["selection_rate"]) == ("1", "1/10")
    assert tenth["gaussian_mse"] < everyone["gaussian_mse"]
    assert tenth["epsilon_server"] == tenth["epsilon_model_reader"] <= 2.0


@pytest.mark.parametrize("rate", ["", "a tenth", "1/0", "nan", "1e-1", "1" * 40])
def test_plan_refuses_an_invalid_selection_rate(capsys, rate):
    words = [*PLAN, "--epsilon", "2", "--selection-rate", rate, "--json"]
    assert main(words) == exit_code_of(ErrorCode.BAD_SETTINGS)
    assert "no rate" in error_of(capsys)["message"]


@pytest.mark.parametrize(
    ("ending", "magic"), [("png", b"\x89PNG"), ("SVG", b"<?xml"), ("pdf", b"%PDF")]
)
def test_plan_writes_a_picture_in_the_format_of_the_file_extension(
    tmp_path, capsys, ending, magic
):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plan.{ending}"
    words = [
        "--epsilon",
        "2",
        "--bits",
        "14",
        "--mechanism",
        "skellam",
    ]
    assert main([*PLAN, *words, "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(magic)
    assert "central Gaussian" in capsys.readouterr().out


def test_the_picture_of_a_plan_has_integer_ticks_for_bits():
    pytest.importorskip("matplotlib")
    # Few enough widths that matplotlib's own choice of ticks has halves in it.
    made = distributed_dp.plan(
        clients=50,
        dimension=64,
        l2_clip=1.0,
        epsilon=2.0,
        delta=1e-5,
        bits=14,
        mechanism="skellam",
    )
    (axes,) = error_figure(made).axes
    axes.set_xlim(6.8, 9.2)
    assert all(tick == round(tick) for tick in axes.get_xticks())


def test_an_unsupported_picture_format_is_rejected_before_planning(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("secagg.distributed_dp.plan", None)
    words = ["--epsilon", "1", "--plot", str(tmp_path / "plan.xyz"), "--json"]
    assert main([*PLAN, *words]) == exit_code_of(ErrorCode.BAD_SETTINGS)
    assert ".svg" in error_of(capsys)["next_step"]


@pytest.mark.parametrize("epsilon", ["-1", "0", "nan", "inf"])
def test_an_impossible_budget_is_refused(epsilon, capsys):
    assert main([*PLAN, "--epsilon", epsilon, "--json"]) == 72
    error = error_of(capsys)
    assert "epsilon" in error["message"]
    assert error["next_step"]


def test_an_accountant_without_a_theorem_for_the_mechanism_is_refused(capsys):
    words = ["--epsilon", "2", "--mechanism", "binomial", "--accountant", "zcdp"]
    words.append("--json")
    assert main([*PLAN, *words]) == exit_code_of(ErrorCode.INFEASIBLE)
    assert "--accountant" in error_of(capsys)["next_step"]


def test_too_few_bits_are_refused_with_the_nearest_that_work(capsys):
    words = [
        "--epsilon",
        "2",
        "--bits",
        "1",
        "--mechanism",
        "skellam",
        "--json",
    ]
    assert main([*PLAN, *words]) in (72, 76)
    assert "bits" in error_of(capsys)["message"]


# --- graph --------------------------------------------------------------------------

GRAPH = ["graph", "--clients", "1000", "--corrupt", "0.1", "--dropout", "0.3", "--json"]


def test_graph_prints_degree_threshold_and_failure_bounds(capsys, json_answer):
    assert main(GRAPH) == 0
    found = last_line(capsys)
    json_answer("graph", found)
    assert (found["graph"], found["degree"], found["threshold"]) == ("harary", 102, 39)
    assert found["threshold_max"] >= 39
    assert (found["colluders"], found["losses"]) == (100, 300)
    assert found["holder_bits"] >= 41 <= found["cut_bits"]
    assert found["liveness_bits"] >= 30
    assert 0 < found["bytes_up_per_client"] < found["bytes_down_per_client"]
    assert (found["profile"], found["reason"]) == ("honest-curious-server", "")
    assert "quorum" not in found


def test_graph_against_a_malicious_server_names_the_quorum(capsys, json_answer):
    assert main([*GRAPH, "--adversary", "malicious"]) == 0
    found = last_line(capsys)
    json_answer("graph against a malicious server", found)
    assert (found["graph"], found["degree"], found["threshold"]) == ("k-out", 108, 42)
    assert (found["quorum"], found["not_included_unseen"]) == (551, 3)
    assert found["profile"] == "malicious-server-sparse"
    assert (
        main(["graph", "--clients", "500", "--adversary", "malicious", "--json"]) == 0
    )
    assert last_line(capsys)["profile"] == "malicious-server"


def test_graph_respects_sigma_and_eta(capsys):
    assert main([*GRAPH, "--sigma", "80", "--eta", "60"]) == 0
    found = last_line(capsys)
    assert found["degree"] > 102
    assert found["holder_bits"] >= 81 <= found["cut_bits"]
    assert found["liveness_bits"] >= 60


def test_graph_chooses_the_complete_graph_and_states_the_reason(capsys):
    words = ["--clients", "100", "--corrupt", "1/3", "--dropout", "1/3"]
    assert main(["graph", *words]) == 0
    assert "the complete graph: no ring" in capsys.readouterr().out
    assert main(["graph", *words, "--json"]) == 0
    found = last_line(capsys)
    assert (found["graph"], found["degree"]) == ("complete", 0)
    assert found["reason"]
    assert found["holder_bits"] is found["cut_bits"] is None  # impossible


def test_graph_states_that_no_profile_covers_a_semi_malicious_server(capsys):
    assert main(["graph", "--clients", "1000", "--adversary", "semi-malicious"]) == 0
    shown = capsys.readouterr().out
    assert "no profile" in shown
    assert "90" in shown.split("degree")[1].splitlines()[0]


def test_graph_labels_unreviewed_profiles(capsys):
    assert main(["graph", "--clients", "1000", "--adversary", "malicious"]) == 0
    assert "experimental and unreviewed" in capsys.readouterr().out


def test_graph_labels_sizes_that_cannot_be_served(capsys):
    assert main(["graph", "--clients", "65536"]) == 0
    assert "figures only: this release serves no profile" in capsys.readouterr().out
    assert main(["graph", "--clients", "65535"]) == 0
    assert "figures only" not in capsys.readouterr().out


def test_graph_fails_if_no_graph_is_safe(capsys):
    words = ["--clients", "100", "--corrupt", ".5", "--dropout", ".5", "--json"]
    assert main(["graph", *words]) == exit_code_of(ErrorCode.INFEASIBLE)
    error = error_of(capsys)
    assert "fewer than two honest" in error["message"]
    assert error["next_step"]


@pytest.mark.parametrize(
    "words",
    [
        ["--corrupt", "half"],
        ["--dropout", "1/0"],
        ["--corrupt", "1.5"],
        ["--dropout=-.1"],
        ["--adversary", "lazy"],
    ],
)
def test_graph_rejects_invalid_fractions_and_adversaries(words, capsys):
    assert main(["graph", "--clients", "100", *words]) == 2
    assert words[-1].split("=")[-1] in capsys.readouterr().err


def test_a_server_prints_its_graph_and_the_failure_bounds():
    complete = parameters_for(60, dimension=2, threshold=31)
    assert "each client shares with every other client" in _graph_of(complete)
    ring = replace(
        complete,
        min_clients=60,
        min_survivors=50,
        max_losses=10,
        max_dropouts=10,
        degree=30,
        threshold=14,
        colluders=15,
        tail=HonestCuriousParameters(6),
    )
    line = _graph_of(ring.validate())
    assert "ring of degree 30" in line
    assert "above 2^-6 are not summed up" in line
    odds = failure_bounds_of(ring)
    assert f"2^-{odds.holder_bits:.1f} for too many colluders" in line


# --- pki ----------------------------------------------------------------------------


def test_pki_init_creates_all_walkthrough_files_and_overwrites_none(
    tmp_path, capsys, json_answer
):
    directory = tmp_path / "pki"
    assert main(["pki", "init", str(directory), "--clients", "2", "--json"]) == 0
    made = last_line(capsys)
    json_answer("pki init", made)
    names = {Path(path).name for path in made["files"]}
    stems = ("ca", "server", "client-1", "client-2")
    expected = {f"{stem}.{end}" for stem in stems for end in ("pem", "key")}
    assert names == expected | {"credential.bin"}
    for path in directory.glob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = (directory / "ca.key").read_bytes()
    assert main(["pki", "init", str(directory), "--json"]) == 55
    assert (directory / "ca.key").read_bytes() == before


def test_pki_adds_a_server_and_clients_to_a_certificate_authority(
    tmp_path, capsys, json_answer
):
    directory = str(tmp_path)
    assert main(["pki", "ca", directory, "--json"]) == 0
    json_answer("pki ca", last_line(capsys))
    words = ["pki", "server", directory, "agg", "--host", "agg.example", "--json"]
    assert main(words) == 0
    json_answer("pki server", last_line(capsys))
    assert main(["pki", "client", directory, "alice", "bob", "--json"]) == 0
    made = last_line(capsys)
    json_answer("pki client", made)
    assert len(made["files"]) == 4
    assert main(["pki", "client", directory, "not a name", "--json"]) == 74
    assert error_of(capsys)["next_step"]


# --- server and client --------------------------------------------------------------


@pytest.fixture
def deployment(tmp_path, capsys, settings_texts):
    assert main(["pki", "init", str(tmp_path / "pki"), "--clients", "1"]) == 0
    (tmp_path / "server.toml").write_text(settings_texts["server"])
    soon = settings_texts["client"].replace("[tls]", "wait_seconds = 0.0\n[tls]")
    (tmp_path / "client.toml").write_text(soon)
    np.save(tmp_path / "x.npy", np.zeros(4))
    capsys.readouterr()
    return tmp_path


def run_server(directory, *words):
    return main(["server", "--config", str(directory / "server.toml"), *words])


def run_client(directory, *words, vector="x.npy"):
    config, path = str(directory / "client.toml"), str(directory / vector)
    return main(["client", "--config", config, "--input", path, *words])


def test_a_password_in_the_address_of_a_store_is_refused_and_never_shown(
    deployment, capsys
):
    address = "postgresql://me:swordfish@127.0.0.1/sums"
    words = ["--store", address, "--show-settings", "--json"]
    assert run_server(deployment, *words) == exit_code_of(ErrorCode.BAD_SETTINGS)
    captured = capsys.readouterr()
    assert "passfile" in captured.out
    assert "swordfish" not in captured.out + captured.err


def test_show_settings_prints_every_setting_and_the_budget(
    deployment, capsys, json_answer
):
    assert run_server(deployment, "--show-settings", "--json") == 0
    json_answer("server show settings", last_line(capsys))
    assert run_client(deployment, "--show-settings", "--json") == 0
    json_answer("client show settings", last_line(capsys))
    assert run_server(deployment, "--show-settings", "--set", "task.steps=2") == 0
    shown = capsys.readouterr().out
    assert "task.steps" in shown
    assert "--set" in shown
    assert "epsilon" in shown


@pytest.mark.parametrize(
    ("override", "code", "expected"),
    [
        ("cohort.threshold=4", 72, "threshold"),
        ("cohort.min_survivors=4", 72, "min_survivors"),
        ("task.profile=malicious-server", 72, "malicious-server"),
        ("vector.modulus_bits=1", 72, "bits"),
        ("task.payload=absent.bin", 72, "absent.bin"),
        ("noise.mechanism=nonsense", 72, "nonsense"),
        ("noise.mechanism=gaussian", 72, "trusted"),
        ("server.listen=nonsense", 72, "host:port"),
        ("tls.certificate=absent.pem", 74, "absent.pem"),
        ("tls.unknown=1", 72, "tls.unknown"),
    ],
)
def test_an_invalid_server_configuration_states_its_error(
    deployment, capsys, override, code, expected
):
    assert run_server(deployment, "--set", override, "--json") == code
    error = error_of(capsys)
    assert expected in error["message"]
    assert error["next_step"]


def test_a_clients_certificate_does_not_make_a_server(deployment, capsys):
    pki = deployment / "pki"
    words = [
        f"--set=tls.certificate={pki}/client-1.pem",
        f"--set=tls.key={pki}/client-1.key",
    ]
    assert run_server(deployment, *words, "--json") == 74
    assert "client" in error_of(capsys)["message"]


@pytest.mark.parametrize(
    ("vector", "expected"),
    [
        (np.array([0.0, np.nan, 0.0, 0.0]), "NaN or infinity, first at entry 1"),
        (np.array([0.0, 0.0, 0.0, np.inf]), "first at entry 3"),
        (np.zeros((2, 2)), "shape (2, 2)"),
        (np.array(["a"]), "expected numbers"),
        (np.zeros(4, complex), "expected numbers"),
    ],
)
def test_an_invalid_vector_is_rejected_before_any_call(
    deployment, capsys, vector, expected
):
    np.save(deployment / "bad.npy", vector)
    assert run_client(deployment, "--json", vector="bad.npy") == 70
    error = error_of(capsys)
    assert expected in error["message"]
    assert error["next_step"]


@pytest.mark.parametrize("content", [b"", b"not numpy", b"PK\x03\x04"])
def test_a_file_that_is_no_vector_is_refused(deployment, capsys, content):
    (deployment / "bad.npy").write_bytes(content)
    assert run_client(deployment, "--json", vector="bad.npy") == 70
    assert "bad.npy" in error_of(capsys)["message"]


def test_objects_in_a_file_are_never_executed(deployment, capsys):
    class Surprise:
        def __reduce__(self):
            return os.mkdir, (str(deployment / "executed"),)

    np.save(deployment / "bad.npy", np.array([Surprise()]), allow_pickle=True)
    assert run_client(deployment, "--json", vector="bad.npy") == 70
    assert not (deployment / "executed").exists()
    capsys.readouterr()


def test_a_missing_input_is_refused(deployment, capsys):
    assert run_client(deployment, "--json", vector="absent.npy") == 70
    assert "absent.npy" in error_of(capsys)["message"]


def test_an_unreachable_server_is_named(deployment, capsys):
    # Nothing listens on port 1; at least one attempt must have time to find out.
    assert run_client(deployment, "--set=client.wait_seconds=1", "--json") == 58
    error = error_of(capsys)
    assert "127.0.0.1:1" in error["message"]
    assert "client.server" in error["next_step"]


def test_a_client_prints_why_the_server_is_unreachable(deployment, capsys):
    # Long enough for one attempt on any machine; each is refused at once.
    assert run_client(deployment, "--set=client.wait_seconds=2", "--json") == 58
    captured = capsys.readouterr()
    said = "cannot reach the aggregator: 127.0.0.1:1 refuses connections"
    assert said in captured.err
    error = json.loads(captured.out.splitlines()[-1])["error"]
    said = "stopped waiting after 2 seconds: 127.0.0.1:1 refuses"
    assert error["message"].startswith(said)
    assert "Start the aggregator" in error["next_step"]


def test_a_name_that_no_aggregator_can_have_is_refused(deployment, capsys):
    assert run_client(deployment, "--set=client.aggregator=No.Name", "--json") == 72
    assert "client.aggregator" in error_of(capsys)["message"]


def test_an_unknown_profile_in_a_policy_is_refused(deployment, capsys):
    assert run_client(deployment, "--set=policy.profiles=nonsense", "--json") == 72
    assert "nonsense" in error_of(capsys)["message"]


# --- what is looked at first ---------------------------------------------------------


@pytest.fixture
def planned(monkeypatch):
    """Counts plans."""
    asked = []
    monkeypatch.setattr(
        "secagg.server.task.setup.plan", lambda **_: asked.append("plan")
    )
    return asked


def hold_port():
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    held.listen()
    return held


@pytest.mark.parametrize(
    ("override", "refusal"),
    [
        ("tls.ca=absent.pem", (74, "absent.pem")),
        ("tls.key={}/pki/client-1.key", (74, "does not belong")),
        ("tls.ca=/dev/null", (74, "/dev/null")),
        ("server.state_dir={}/x.npy", (55, "not a directory")),
        ("server.state_dir={}/x.npy/deeper", (55, "not a directory")),
        ("server.output_dir=/proc/sums", (55, "/proc/sums")),
        ("task.payload={}", (72, "payload")),
        ("server.health_listen=nonsense", (72, "host:port")),
    ],
)
def test_a_server_checks_its_files_before_planning(
    deployment, capsys, planned, override, refusal
):
    code, expected = refusal
    words = ["--set", override.format(deployment), "--json"]
    assert run_server(deployment, *words) == code
    assert expected in error_of(capsys)["message"]
    # What the settings name is checked when they are shown, too.
    assert run_server(deployment, "--show-settings", *words) == code
    captured = capsys.readouterr()
    assert expected in json.loads(captured.out.splitlines()[-1])["error"]["message"]
    assert "ERROR" in captured.err
    assert not planned
    assert not list(deployment.glob("*state*"))


def test_until_done_and_a_folder_of_further_tasks_exclude_each_other(
    deployment, capsys, planned
):
    folder = f"server.tasks_dir={deployment}"
    for words in ([], ["--show-settings"]):
        assert run_server(deployment, "--until-done", "--set", folder, *words) == 2
        assert "server.tasks_dir names further ones" in " ".join(
            capsys.readouterr().err.replace("│", "").split()
        )
    assert not planned


def test_a_port_in_use_is_found_before_planning(deployment, capsys, planned):
    with hold_port() as held:
        word = f"server.listen=127.0.0.1:{held.getsockname()[1]}"
        assert run_server(deployment, "--set", word, "--json") == 73
        assert error_of(capsys)["next_step"]
        word = f"server.health_listen=127.0.0.1:{held.getsockname()[1]}"
        assert run_server(deployment, "--set", word, "--json") == 73
    assert not planned


def test_a_disk_too_small_for_one_session_is_found_before_planning(
    deployment, capsys, planned, monkeypatch
):
    free = MIN_FREE_BYTES + 3 * 128 - 1  # three vectors of 1024 entries of one bit
    monkeypatch.setattr(
        "shutil.disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 0, free)
    )
    assert run_server(deployment, "--set=vector.dimension=1024", "--json") == 55
    assert "bytes left" in error_of(capsys)["message"]
    assert not planned
    # What is there already needs no room again: one byte less is enough to plan.
    (deployment / "server-state").mkdir()
    (deployment / "server-state" / "upload").write_bytes(b"1")
    run_server(deployment, "--show-settings", "--set=vector.dimension=1024")
    assert planned
    capsys.readouterr()


def test_a_key_readable_by_others_is_reported_by_show_settings(deployment, capsys):
    key = deployment / "pki" / "client-1.key"
    assert run_client(deployment, "--show-settings") == 0
    assert "other users may" not in capsys.readouterr().out
    key.chmod(0o644)
    assert run_client(deployment, "--show-settings") == 0
    shown = capsys.readouterr().out
    assert f"other users may read {key}; chmod 600 {key}" in shown
    assert "client/client-1, valid until" in shown


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["--set=tls.certificate=absent.pem"], 74, "absent.pem"),
        (["--set=client.server=nonsense"], 72, "host:port"),
        (["--set=client.state_dir=/dev/null"], 55, "not a directory"),
        (["--output", "{}"], 55, "is a directory"),
        (["--output", "/proc/o.npy"], 55, "/proc"),
        (["--payload-out", "{}/x.npy/model"], 55, "not a directory"),
    ],
)
def test_a_client_checks_its_files_before_any_call(
    deployment, capsys, words, code, expected
):
    given = [word.format(deployment) for word in words]
    assert run_client(deployment, *given, "--json") == code
    assert expected in error_of(capsys)["message"]
    assert run_client(deployment, *given, "--show-settings", "--json") == code
    captured = capsys.readouterr()
    assert expected in json.loads(captured.out.splitlines()[-1])["error"]["message"]
    assert "client.task" in captured.err
    assert not (deployment / "client-state").exists()


def test_show_settings_reads_the_input(deployment, capsys):
    assert run_client(deployment, "--show-settings") == 0
    assert "4 entries of float64" in capsys.readouterr().out
    assert run_client(deployment, "--show-settings", "--json", vector="absent") == 70
    assert "absent" in error_of(capsys)["message"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "--same-input-again"),
        (["--same-input-again", "--output", "sum.npy"], "sum-{session}.npy"),
        (["--same-input-again", "--payload-out", "m.bin"], "m-{session}.bin"),
    ],
)
def test_one_vector_serves_several_sessions_only_if_requested(
    deployment, capsys, words, expected
):
    several = "--set=client.sessions=2"
    assert run_client(deployment, several, "--json", *words) == 72
    assert expected in error_of(capsys)["next_step"]


def test_an_owner_can_request_one_vector_for_all_sessions(deployment):
    words = ["--same-input-again", "--set=client.sessions=2"]
    assert run_client(deployment, *words, "--json") == 58  # nothing listens there
    assert run_client(deployment, words[1], "--json", vector="x-{session}.npy") == 58


# --- output -------------------------------------------------------------------------


def test_json_is_strict_and_tables_are_plain_in_a_pipe(capsys):
    assert json.loads(to_json_line({"a": float("inf"), "b": [float("nan"), 1]})) == {
        "a": None,
        "b": [None, 1],
    }
    Output(as_json=False).table(("name", "n"), [("x", "10")], numeric=(1,))
    assert capsys.readouterr().out.splitlines() == ["name   n", "x     10"]


def test_with_json_text_goes_to_standard_error_and_the_last_line_is_json(capsys):
    output = Output(as_json=True)
    output.line("for people")
    output.error(ServiceError("broken", code=ErrorCode.STORAGE_FAILED, next_step="fix"))
    captured = capsys.readouterr()
    assert "for people" in captured.err
    assert "broken" in captured.err
    assert "next step: fix" in captured.err
    assert json.loads(captured.out) == {
        "error": {
            "code": 45,
            "name": "STORAGE_FAILED",
            "exit_code": 55,
            "message": "broken",
            "next_step": "fix",
        }
    }


def test_a_missing_library_is_named_with_its_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert main(["demo", "--json"]) == 75
    assert "scikit-learn" in error_of(capsys)["next_step"]
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert main([*PLAN, "--epsilon", "1", "--plot", "x.png", "--json"]) == 75
    assert "matplotlib" in error_of(capsys)["next_step"]


def test_the_demo_does_not_touch_a_directory_in_use(tmp_path, capsys):
    (tmp_path / "mine").write_text("data")
    assert main(["demo", "--directory", str(tmp_path), "--json"]) == 55
    assert "not empty" in error_of(capsys)["message"]
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_client_requires_the_full_sentence_for_a_restored_state(deployment, capsys):
    assert run_client(deployment, "--restored", "yes", "--json") == 72
    error = error_of(capsys)
    assert "I accept that this client may answer twice" in error["next_step"]


def test_a_client_with_a_restored_state_is_rejected_until_it_is_accepted(
    deployment, capsys
):
    state, mark = deployment / "client-state", deployment / "marks" / "client"
    marked = f"--set=client.rollback_mark={mark}"
    assert run_client(deployment, marked, "--json") == 58
    shutil.rmtree(state)  # as a copy of the machine without its newest state
    capsys.readouterr()
    assert run_client(deployment, marked, "--json") == 78
    assert str(mark) in error_of(capsys)["message"]
    sentence = "I accept that this client may answer twice"
    assert run_client(deployment, marked, "--restored", sentence, "--json") == 58
    assert run_client(deployment, marked, "--json") == 58


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["tasks", "remove", "digits"], "stop"),
        (["tasks", "stpo", "digits"], "stop"),
        (["simulat"], "simulate"),
        (["simulate", "--client", "3"], "--clients"),
        (["graph", "--colluders", "3"], None),
        (["demo", "--nope"], None),
        (["sessions", "remove"], None),
    ],
)
def test_a_name_is_suggested_only_if_it_is_close_or_a_synonym(words, meant, capsys):
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "No such" in said
    assert ("Did you mean" in said) == (meant is not None)
    assert meant is None or f"Did you mean {meant}?" in said
    assert "Possible" not in said


@pytest.mark.parametrize("words", [[], ["simulate"], ["pki", "init"], ["client"]])
def test_the_help_prints_no_type_after_a_flag(words, capsys):
    assert main([*words, "--help"]) == 0
    assert "bool" not in capsys.readouterr().out


def test_the_help_breaks_lines_where_the_terminal_ends(capsys):
    assert main(["client", "--help"]) == 0
    said = capsys.readouterr().out.partition("Options")[0]
    lines = [line.rstrip() for line in said.splitlines()]
    width = max(map(len, lines))
    for line, following in pairwise(lines):
        if line and following:  # the next word has no room in the line before it
            assert len(f"{line} {following.split()[0]}") > width, line


def test_a_file_that_is_not_a_receipt_is_rejected_with_a_next_step(tmp_path, capsys):
    (tmp_path / "x.npy").write_bytes(b"not a receipt, but longer than one begins")
    assert main(["sessions", "verify", str(tmp_path / "x.npy")]) != 0
    said = capsys.readouterr().err
    assert "it does not begin like one" in said
    assert "next step: Name a receipt" in said


def test_renew_before_requires_a_renewal_command(capsys):
    words = ["client", "--config", "c.toml", "--input", "x.npy", "--renew-before", "3"]
    assert main(words) == 2
    assert "--renew-exec" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (["simulate", "--dimension", "1e6"], "Write --dimension 1000000"),
        (["simulate", "--dimension=2.5e3"], "Write --dimension 2500"),
        (["simulate", "--dimension", "1e999"], "See secagg simulate --help"),
        (["simulate", "--dimension", "many"], "See secagg simulate --help"),
        (["simulate", "--dimension", "1.5"], "See secagg simulate --help"),
        (["simulate", "--dimension", "0"], "See secagg simulate --help"),
    ],
)
def test_an_integer_in_an_unsupported_notation_is_shown_in_the_supported_one(
    words, step, capsys
):
    assert main([*words, "--json"]) == 2
    assert error_of(capsys)["next_step"] == step


def test_an_unsupported_database_is_rejected(deployment, capsys):
    words = ["server", "--config", str(deployment / "server.toml"), "--show-settings"]
    assert main([*words, "--set", "server.store=mysql://a/b", "--json"]) == 72
    assert "names another kind of database" in error_of(capsys)["message"]


@pytest.mark.parametrize(
    ("name", "code"), [("result.png", 72), ("absent/result.svg", 55), (".svg", 72)]
)
def test_an_unsupported_picture_stops_the_demo_at_once(name, code, tmp_path, capsys):
    assert main(["demo", "--picture", str(tmp_path / name), "--json"]) == code
    assert "--picture" in error_of(capsys)["next_step"]
    assert not list(tmp_path.iterdir())
