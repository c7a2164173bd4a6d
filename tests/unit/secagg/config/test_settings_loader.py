import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from secagg.config import end_of_task, load_client_settings, load_server_settings
from secagg.config.common import total_budget
from secagg.config.task import TaskSection
from secagg.errors import ErrorCode, LocalProtocolError, ServiceError
from secagg.protocol.policy import (
    GROUNDS,
    NO_NOISE_ACKNOWLEDGEMENT,
    PrivacyLimits,
    TotalBudget,
)

CLIENT = """
[client]
server = "localhost:7400"
task = "t"
[tls]
ca = "ca.pem"
certificate = "client.pem"
key = "/abs/client.key"
[policy]
max_epsilon = 4
max_delta = 1e-6
"""

SERVER = """
[tls]
ca = "ca.pem"
certificate = "server.pem"
key = "server.key"
[task]
id = "t"
[vector]
dimension = 8
[cohort]
min_clients = 3
max_clients = 4
min_survivors = 3
[noise]
epsilon = 1.0
delta = 1e-5
l2_clip = 1.0
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    return path


def client(tmp_path, text=CLIENT, environment=None, overrides=()):
    return load_client_settings(
        write(tmp_path, text), environment=environment or {}, overrides=overrides
    )


def server(tmp_path, text=SERVER, environment=None, overrides=()):
    return load_server_settings(
        write(tmp_path, text), environment=environment or {}, overrides=overrides
    )


def complaint_of(action) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        action()
    assert caught.value.code is ErrorCode.BAD_SETTINGS
    return caught.value


def test_later_sources_take_precedence_and_each_value_records_its_origin(tmp_path):
    loaded = client(
        tmp_path,
        environment={
            "SECAGG_POLICY_MIN_CLIENTS": "7",
            "SECAGG_CLIENT_TASK": "from-environment",
            "PATH": "/bin",
        },
        overrides=["policy.min_clients=9"],
    )
    assert loaded.settings.policy.min_clients == 9
    assert loaded.origins["policy.min_clients"] == "--set"
    assert loaded.settings.client.task == "from-environment"
    assert loaded.origins["client.task"] == "SECAGG_CLIENT_TASK"
    assert loaded.origins["client.server"].endswith("settings.toml")
    assert loaded.origins["policy.max_clients"] == "default"
    shown = {key: value for key, value, _ in loaded.rows()}
    assert shown["client.task"] == "from-environment"
    assert shown["policy.max_dropouts"] == ""


def test_a_relative_path_in_a_file_is_relative_to_that_file(tmp_path):
    loaded = client(tmp_path, overrides=["tls.certificate=here.pem"])
    assert loaded.settings.tls.ca == tmp_path / "ca.pem"
    assert loaded.settings.tls.key == Path("/abs/client.key")
    assert loaded.settings.tls.certificate == Path("here.pem")
    assert loaded.settings.client.state_dir == tmp_path / "client-state"


@pytest.mark.parametrize(
    ("text", "expected", "step"),
    [
        (CLIENT + "min_client = 5\n", "policy.min_client", "min_clients"),
        (CLIENT + "[polcy]\nmin_clients = 5\n", "[polcy]", "policy"),
    ],
)
def test_an_unknown_key_is_an_error_with_a_suggestion(tmp_path, text, expected, step):
    error = complaint_of(lambda: client(tmp_path, text))
    assert expected in str(error)
    assert step in error.next_step


@pytest.mark.parametrize(
    ("given", "step"),
    [
        ("certifed", "Did you mean certified?"),
        ("published,provn", "Did you mean proven?"),
        ("hypothetical", "Choose one of these."),
        ("certified (own proof)", "Did you mean certified?"),
    ],
)
def test_an_unknown_status_in_grounds_is_an_error_with_a_suggestion(
    tmp_path, given, step
):
    error = complaint_of(
        lambda: client(tmp_path, overrides=[f"policy.grounds={given}"])
    )
    assert f"not {given.split(',')[-1]!r}" in str(error)
    assert error.next_step == step
    known = ",".join(GROUNDS)
    loaded = client(tmp_path, overrides=[f"policy.grounds={known}"])
    assert loaded.settings.policy.grounds == GROUNDS


def test_an_unknown_status_in_privacy_limits_is_an_error_with_a_suggestion():
    for words, step in (
        ({"certified", "publishd"}, "Did you mean published?"),
        ({"hypothetical"}, f"Choose among {', '.join(GROUNDS)}."),
        # One text is no set of words.
        ("certified", "Give statuses=[...], with one text for each name."),
    ):
        with pytest.raises(LocalProtocolError, match="statuses must be") as caught:
            PrivacyLimits(max_epsilon=1.0, max_delta=1e-6, statuses=words)
        assert caught.value.next_step == step


def test_an_unknown_variable_is_an_error_unless_it_is_the_other_programs(tmp_path):
    client(tmp_path, environment={"SECAGG_SERVER_LISTEN": "0.0.0.0:1"})
    error = complaint_of(
        lambda: client(tmp_path, environment={"SECAGG_POLICY_MIN_CLIENT": "1"})
    )
    assert "SECAGG_POLICY_MIN_CLIENTS" in error.next_step


def test_an_unknown_flag_key_is_an_error_with_a_suggestion(tmp_path):
    error = complaint_of(lambda: client(tmp_path, overrides=["policy.min_cients=1"]))
    assert "policy.min_clients" in error.next_step
    complaint_of(lambda: client(tmp_path, overrides=["policy.min_clients"]))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("policy.min_clients=1", "at least 2"),
        ("policy.max_clients=65536", "at most 65535"),
        ("policy.min_clients=three", "whole number"),
        ("policy.min_clients=3.5", "whole number"),
        ("policy.max_epsilon=nan", "finite"),
        ("policy.max_epsilon=inf", "finite"),
        ("policy.require_noise=maybe", "true or false"),
        ("client.log_level=loud", "one of debug"),
    ],
)
def test_a_bad_value_names_key_rule_and_origin(tmp_path, override, expected):
    error = complaint_of(lambda: client(tmp_path, overrides=[override]))
    assert expected in str(error)
    assert override.partition("=")[0] in str(error)
    assert "--set" in str(error)
    assert error.next_step


@pytest.mark.parametrize(
    "line",
    ["min_clients = true", 'min_clients = "3"', "profiles = 3", "require_noise = 1"],
)
def test_a_value_of_the_wrong_type_in_a_file_is_refused(tmp_path, line):
    assert "must be a" in str(complaint_of(lambda: client(tmp_path, CLIENT + line)))


@pytest.mark.parametrize(
    "line",
    [
        "total_epsilon = 0x" + "f" * 5000,
        "min_clients = -9223372036854775808",
        'data_dir = "~no-such-user/data"',
        'data_dir = "a\\u0000b"',
    ],
)
def test_a_value_that_no_system_can_use_is_refused(tmp_path, line):
    """And no error of the system, or of Python, reaches the operator."""
    error = complaint_of(lambda: client(tmp_path, CLIENT + line))
    assert f"policy.{line.split()[0]} must be a " in str(error)
    assert "settings.toml" in str(error)


def test_a_file_named_like_a_variable_has_the_types_of_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("SECAGG_client.toml")
    path.write_text(CLIENT + 'min_clients = "3"')
    error = complaint_of(lambda: load_client_settings(path, environment={}))
    assert "must be a whole number" in str(error)


def test_a_missing_key_states_its_purpose_and_place(tmp_path):
    error = complaint_of(lambda: client(tmp_path, CLIENT.replace('task = "t"', "")))
    assert "client.task is missing" in str(error)
    assert "[client]" in error.next_step
    assert "SECAGG_CLIENT_TASK" in error.next_step


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"[client\n", "not valid TOML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"client = 3\n", "must be a section"),
        (b"client = " + b"9" * 5000, "not valid TOML"),
        (b"client = " + b"[" * 5000, "not valid TOML"),
        (b"#" * ((1 << 20) + 1), "larger than"),
    ],
)
def test_an_unreadable_file_is_a_clear_error(tmp_path, content, expected):
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    error = complaint_of(lambda: load_client_settings(path, environment={}))
    assert expected in str(error)
    assert error.next_step


def test_a_missing_file_is_a_clear_error(tmp_path):
    error = complaint_of(
        lambda: load_client_settings(tmp_path / "absent.toml", environment={})
    )
    assert "cannot read the settings file" in str(error)


def test_environment_texts_are_parsed_as_lists_and_empty_optionals(tmp_path):
    loaded = client(
        tmp_path,
        environment={
            "SECAGG_POLICY_GRAPHS": "complete, ring",
            "SECAGG_POLICY_MAX_DROPOUTS": "",
        },
    )
    assert loaded.settings.policy.graphs == ("complete", "ring")
    assert loaded.settings.policy.max_dropouts is None


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ('task.invited=["a"]', "--set task.invited=a"),
        ('task.invited=["a", "b"]', "--set task.invited=a,b"),
        ("task.invited=[a,b]", "--set task.invited=a,b"),  # quotes lost to the shell
        ("task.invited='a'", "--set task.invited=a"),
        ("task.invited=a,,b", "--set task.invited=a,b"),
        ("task.invited=,", "--set task.invited="),
        ('task.id="t u"', "--set 'task.id=t u'"),
        ("task.id=[t]", "--set task.id=t"),
        ("server.state_dir='/srv/state'", "--set server.state_dir=/srv/state"),
        ('server.listen="[::1]:7400"', "--set 'server.listen=[::1]:7400'"),
    ],
)
def test_a_toml_value_in_set_is_rejected_with_the_correct_spelling(
    tmp_path, override, remedy
):
    error = complaint_of(lambda: server(tmp_path, overrides=[override]))
    assert override.partition("=")[0] in str(error)
    assert "--set" in str(error)
    assert error.next_step == f"Write {remedy}"


def test_a_toml_value_in_a_variable_is_rejected_with_the_correct_spelling(tmp_path):
    variable = {"SECAGG_TASK_INVITED": '["a", "b"]'}
    error = complaint_of(lambda: server(tmp_path, environment=variable))
    assert error.next_step == "Write SECAGG_TASK_INVITED=a,b"


def test_lists_and_bracketed_addresses_are_parsed(tmp_path):
    settings = server(
        tmp_path,
        overrides=["task.invited=a, b,c", "server.listen=[::1]:7400", "task.id=2026"],
    ).settings
    assert settings.task.invited == ("a", "b", "c")
    assert settings.server.listen == "[::1]:7400"
    assert settings.task.id == "2026"
    assert server(tmp_path, overrides=["task.invited="]).settings.task.invited == ()


@pytest.mark.parametrize("name", ["", "a b", "[a]", "..", "x" * 256])
def test_an_invited_name_without_a_possible_certificate_is_rejected(tmp_path, name):
    text = SERVER.replace('id = "t"', f'id = "t"\ninvited = ["{name}"]')
    assert "no certificate" in str(complaint_of(lambda: server(tmp_path, text)))


def test_fewer_invitations_than_a_session_needs_are_refused(tmp_path):
    """Also where no participations are named: a client then gives to every sum."""
    error = complaint_of(lambda: server(tmp_path, overrides=["task.invited=a,b"]))
    assert "task.invited is too short: 2 clients" in str(error)


def test_a_server_without_budget_and_without_acknowledgement_is_refused(tmp_path):
    error = complaint_of(lambda: server(tmp_path, SERVER.replace("epsilon = 1.0", "")))
    assert "noise.epsilon" in str(error)
    assert NO_NOISE_ACKNOWLEDGEMENT in error.next_step


def test_waiving_noise_requires_the_whole_sentence_and_excludes_a_budget(tmp_path):
    bare = SERVER.partition("[noise]")[0]
    waived = server(tmp_path, bare + f'[noise]\nnone = "{NO_NOISE_ACKNOWLEDGEMENT}"\n')
    assert waived.settings.noise.none
    complaint_of(lambda: server(tmp_path, bare + '[noise]\nnone = "yes"\n'))
    error = complaint_of(
        lambda: server(tmp_path, SERVER + f'none = "{NO_NOISE_ACKNOWLEDGEMENT}"\n')
    )
    assert "noise.epsilon" in str(error)


def test_a_client_that_requires_noise_must_set_limits(tmp_path):
    text = CLIENT.replace("max_epsilon = 4", "")
    error = complaint_of(lambda: client(tmp_path, text))
    assert "max_epsilon" in str(error)
    text += "require_noise = false\n"
    error = complaint_of(lambda: client(tmp_path, text))
    assert "limits noise" in str(error)
    client(tmp_path, re.sub("max_delta.*\n", "", text))


TOTAL = {"data": '"patients"', "total_epsilon": "9.0", "total_delta": "1e-5"}


def lines(settings):
    return "".join(f"{name} = {value}\n" for name, value in settings.items())


@pytest.mark.parametrize("missing", list(TOTAL))
def test_a_total_budget_must_be_set_completely(tmp_path, missing):
    whole = client(tmp_path, CLIENT + lines(TOTAL)).settings.policy
    assert total_budget(whole) == TotalBudget(data="patients", epsilon=9.0, delta=1e-5)
    part = {name: value for name, value in TOTAL.items() if name != missing}
    error = complaint_of(lambda: client(tmp_path, CLIENT + lines(part)))
    assert f"policy.{missing} is missing" in str(error)
    shared = lines(TOTAL) + 'data_dir = "shared"\n'
    kept = total_budget(client(tmp_path, CLIENT + shared).settings.policy)
    assert kept.directory == tmp_path / "shared"


def test_a_claims_directory_without_a_total_is_rejected(tmp_path):
    text = CLIENT + 'data_dir = "shared"\n'
    error = complaint_of(lambda: client(tmp_path, text))
    assert "policy.data is missing" in str(error)


def test_a_total_budget_requires_noise(tmp_path):
    text = CLIENT + lines(TOTAL) + "require_noise = false\n"
    error = complaint_of(lambda: client(tmp_path, text))
    assert "require_noise" in str(error)


TASK = TaskSection(id="t")


@pytest.mark.parametrize("text", ["2027-01-31T18:00:00Z", "2027-01-31T18:00:00+00:00"])
def test_a_task_ends_at_a_date_in_utc(text):
    moment = end_of_task(replace(TASK, ends=text))
    assert moment == datetime(2027, 1, 31, 18, tzinfo=UTC)
    assert end_of_task(TASK) is None


@pytest.mark.parametrize(
    "text", ["soon", "2027-01-31T18:00:00", "2027-01-31T18:00:00+02:00", "2027-02-30"]
)
def test_an_end_that_is_no_date_in_utc_is_refused(text):
    with pytest.raises(ServiceError, match=r"task\.ends") as caught:
        end_of_task(replace(TASK, ends=text))
    assert caught.value.code is ErrorCode.BAD_SETTINGS


# --- enrolment ------------------------------------------------------------------------

# y = 3: a point of the curve, hence a key.
KEY = f"ed25519:03{'00' * 31}"
DISTRUSTS = {"SECAGG_POLICY_PROFILES": "malicious-server"}


def test_an_identity_must_be_set_completely(tmp_path):
    section = client(
        tmp_path,
        environment=DISTRUSTS,
        overrides=(
            "enrolment.identity=a.seed",
            "enrolment.credential=a.bin",
            f"enrolment.enrolment_key={KEY}",
        ),
    ).settings.enrolment
    assert section.identity == Path("a.seed")
    assert section.enrolment_key == KEY


@pytest.mark.parametrize(
    ("overrides", "missing"),
    [
        (("enrolment.identity=a",), "enrolment.credential"),
        (("enrolment.credential=a",), "enrolment.identity"),
        ((f"enrolment.enrolment_key={KEY}",), "enrolment.identity"),
        (("enrolment.identity=a", "enrolment.credential=b"), "enrolment.enrolment_key"),
    ],
)
def test_an_incomplete_identity_is_rejected(tmp_path, overrides, missing):
    error = complaint_of(lambda: client(tmp_path, overrides=overrides))
    assert f"{missing} is missing" in str(error)


@pytest.mark.parametrize("profile", ["malicious-server", "malicious-server-sparse"])
def test_a_profile_without_trust_in_the_server_requires_an_issuer(tmp_path, profile):
    error = complaint_of(
        lambda: client(tmp_path, overrides=(f"policy.profiles={profile}",))
    )
    assert "enrolment.identity is missing" in str(error)
    error = complaint_of(
        lambda: server(tmp_path, overrides=(f"task.profile={profile}",))
    )
    assert "enrolment.enrolment_key is missing" in str(error)
    overrides = (f"task.profile={profile}", f"enrolment.enrolment_key={KEY}")
    settings = server(tmp_path, overrides=overrides).settings
    assert settings.enrolment.enrolment_key == KEY


def test_a_revocation_list_without_an_issuer_is_rejected(tmp_path):
    error = complaint_of(
        lambda: server(tmp_path, overrides=("enrolment.revocations=a",))
    )
    assert "enrolment.enrolment_key is missing" in str(error)


@pytest.mark.parametrize("load", [client, server])
@pytest.mark.parametrize(
    "key", [KEY[:-1], KEY.upper(), KEY[8:], "ed25519:" + "00" * 32]
)
def test_an_invalid_enrolment_key_is_rejected(tmp_path, load, key):
    error = complaint_of(
        lambda: load(tmp_path, overrides=(f"enrolment.enrolment_key={key}",))
    )
    assert "is not a public key" in str(error)
