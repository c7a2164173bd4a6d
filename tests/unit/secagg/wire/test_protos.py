import dataclasses
import hashlib
import re
from itertools import pairwise
from pathlib import Path

import pytest

from secagg.protocol.messages import KINDS, Round
from secagg.v1 import errors_pb2, google_status_pb2, messages_pb2, secagg_service_pb2
from secagg.wire.calls import CALLS, Blob

ROOT = Path(__file__).resolve().parents[4]
FILES = sorted((ROOT / "protos" / "secagg" / "v1").glob("*.proto"))
MODULES = (errors_pb2, google_status_pb2, messages_pb2, secagg_service_pb2)
MESSAGES = [
    message
    for module in MODULES
    for message in module.DESCRIPTOR.message_types_by_name.values()
]


def test_the_generated_code_matches_the_protos():
    recorded = (ROOT / "secagg" / "v1" / "protos.sha256").read_text()
    actual = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}"
        f"  {path.relative_to(ROOT).as_posix()}\n"
        for path in FILES
    )
    assert recorded == actual, "a proto changed: run `make proto` and commit both"
    assert {module.DESCRIPTOR.name for module in MODULES} == {
        path.relative_to(ROOT / "protos").as_posix() for path in FILES
    }


def test_the_generated_code_declares_exactly_what_the_protos_declare():
    text = "\n".join(re.sub(r"//.*", "", path.read_text()) for path in FILES)
    declared = set(re.findall(r"^message (\w+)", text, re.MULTILINE))
    assert declared == {message.name for message in MESSAGES}
    for message in MESSAGES:
        start = text.index(f"message {message.name} {{")
        is_empty = text.startswith(f"message {message.name} {{}}", start)
        body = "" if is_empty else text[start : text.index("\n}", start)]
        numbered = re.findall(r"(\w+) = (\d+);", body)
        assert numbered == [(f.name, str(f.number)) for f in message.fields]


def test_no_message_uses_repeated_or_map_fields():
    written_only = {"google_status.proto"}  # nothing of ours parses it
    for path in FILES:
        if path.name in written_only:
            continue
        text = re.sub(r"//.*", "", path.read_text())
        assert not re.search(r"\brepeated\b|\bmap\b", text), path.name


def test_no_request_carries_plaintext_numbers_about_its_sender():
    # What a client counts or measures belongs inside the masked vector.
    allowed = {
        "after_session",
        "wait_ms",
        "offset",
        "total_size",
        "after",
        "blob",
        "max_bytes",
    }
    for message in MESSAGES:
        if message.name.endswith("Request"):
            for field in message.fields:
                assert field.type in (field.TYPE_BYTES, field.TYPE_STRING) or (
                    field.name in allowed
                ), field.full_name


def test_every_call_has_its_own_request_and_response():
    service = secagg_service_pb2.DESCRIPTOR.services_by_name["SecAggService"]
    rows = {row.name: row for row in CALLS.values()}
    assert set(rows) == {method.name for method in service.methods}
    for method in service.methods:
        assert method.input_type.name == f"{method.name}Request"
        assert method.output_type.name == f"{method.name}Response"
        assert method.server_streaming == rows[method.name].is_stream
        assert not method.client_streaming
        fields = [field.name for field in method.input_type.fields]
        assert fields == [f.name for f in dataclasses.fields(rows[method.name].request)]


def test_the_kinds_of_updates_are_documented_at_their_field():
    text = (ROOT / "protos" / "secagg" / "v1" / "messages.proto").read_text()
    comment = text.split("Which message it is")[1].split("uint32 kind")[0]
    names = {5: "roster", 6: "delivery", 7: "survivors", 8: "release", 9: "abort"}
    for number, name in names.items():
        assert f"{number} {name}" in comment
        assert KINDS[number].__name__.lower().startswith(name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_proto_declaration_has_a_comment(path):
    lines = path.read_text().splitlines()
    declaration = re.compile(
        r"^\s*(message|enum|service|rpc|oneof) |^\s*\w[\w ]* = \d+;"
    )
    for above, line in pairwise(lines):
        if declaration.match(line) and not line.startswith("syntax"):
            assert above.strip().startswith("//"), f"{path.name}: {line.strip()}"


def test_zero_is_always_unspecified():
    for module in MODULES:
        for enum in module.DESCRIPTOR.enum_types_by_name.values():
            assert enum.values_by_number[0].name.endswith("_UNSPECIFIED")


def test_enum_numbers_on_the_wire_match_the_program():
    assert {
        value.name.removeprefix("ROUND_"): value.number
        for value in messages_pb2.Round.DESCRIPTOR.values
        if value.number
    } == {round_.name: int(round_) for round_ in Round}
    assert {
        value.name.removeprefix("BLOB_"): value.number
        for value in messages_pb2.Blob.DESCRIPTOR.values
        if value.number
    } == {blob.name: int(blob) for blob in Blob}


def test_the_generated_code_requires_the_oldest_declared_runtimes():
    text = (ROOT / "secagg" / "v1" / "messages_pb2.py").read_text()
    assert "# Protobuf Python Version: 6.30.0" in text
    text = (ROOT / "secagg" / "v1" / "secagg_service_pb2_grpc.py").read_text()
    assert "GRPC_GENERATED_VERSION = '1.72." in text
