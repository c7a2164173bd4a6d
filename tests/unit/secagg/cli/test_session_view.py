import io
from dataclasses import replace

from rich.console import Console

from secagg.cli.output import Output
from secagg.cli.session_view import SessionView
from secagg.protocol.messages import Round
from secagg.server.session.events import DroppedClient, SessionPhase, SessionProgress

START = SessionProgress(
    session_id=bytes(32),
    task_id="t",
    session_number=7,
    phase=SessionPhase.COLLECTING,
    round=Round.ADVERTISE_KEYS,
    joined=1,
    answered=1,
    expected=4,
    needed=3,
)
STORY = (
    START,
    replace(START, joined=4, answered=4),
    replace(START, round=Round.SHARE_KEYS, joined=4, answered=0),
    replace(
        START,
        round=Round.MASKED_INPUT_COLLECTION,
        joined=4,
        answered=2,
        expected=3,
        upload_bytes=4096,
        dropped=(
            DroppedClient("client-3", Round.SHARE_KEYS, "sent no shares in time"),
        ),
    ),
    replace(
        START,
        round=Round.FINISHED,
        phase=SessionPhase.COMPLETED,
        joined=4,
        answered=3,
        expected=3,
        upload_bytes=6144,
        dropped=(
            DroppedClient("client-3", Round.SHARE_KEYS, "sent no shares in time"),
        ),
        reason="sum of 3 inputs released",
    ),
)


def rendered_session(*, terminal: bool, story=STORY) -> str:
    stream = io.StringIO()
    output = Output(as_json=False)
    output.console = Console(
        file=stream, force_terminal=terminal, width=100, highlight=False
    )
    with SessionView(output) as view:
        for progress in story:
            view.show(progress)
    return stream.getvalue()


def test_a_pipe_gets_one_plain_line_per_round_and_per_loss():
    assert rendered_session(terminal=False).splitlines() == [
        "session 7: joining, 1 joined, 3 needed, 0 lost",
        "session 7: joining, 4 joined, 3 needed, 0 lost",
        "session 7: sharing keys, 4 joined, 0 lost",
        "session 7: client-3 is lost: sent no shares in time",
        "session 7: uploading, 4 joined, 1 lost, 4,096 bytes",
        "session 7: finished, sum of 3 inputs released",
    ]


def test_budget_and_excluded_clients_are_named_once():
    counted = replace(START, sessions_left=4, excluded=("client-5",))
    done = replace(
        counted,
        round=Round.FINISHED,
        phase=SessionPhase.COMPLETED,
        sessions_left=3,
        reason="sum released",
    )
    assert rendered_session(terminal=False, story=(counted, done)).splitlines() == [
        "session 7: client-5 is excluded, after a dispute in an earlier session",
        (
            "session 7: joining, 1 joined, 3 needed, 4 session(s) left in the budget, "
            "0 lost"
        ),
        "session 7: finished, sum released, 3 session(s) left in the budget",
    ]


def test_a_terminal_gets_a_live_line_and_the_losses():
    text = rendered_session(terminal=True)
    assert "\x1b[" in text
    assert "client-3 is lost" in text
    assert "sum of 3 inputs released" in text
