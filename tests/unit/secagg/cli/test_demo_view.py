import io

from rich.console import Console

from secagg.cli.demo import DemoLines
from secagg.cli.output import Output
from secagg.testbed.demo.layout import DemoPlan
from secagg.testbed.demo.sum_check import SessionCheck

PLAN = DemoPlan(
    clients=9,
    steps=3,
    epsilon=6.0,
    delta=1e-5,
    mechanism="skellam",
    round_seconds=5,
    join_seconds=20,
)
PROGRESS = {
    "session": 2,
    "round": "MASKED_INPUT_COLLECTION",
    "answered": 4,
    "expected": 8,
    "joined": 9,
    "dropped": [{"name": "client-3"}],
    "upload_bytes": 12345,
}


def output_to(stream: io.StringIO, *, terminal: bool) -> Output:
    output = Output(as_json=False)
    output.console = Console(
        file=stream, force_terminal=terminal, width=120, highlight=False, markup=False
    )
    return output


def rendered_demo(
    *, terminal: bool, exact: bool = True, fitted: float | None = None
) -> str:
    stream = io.StringIO()
    with DemoLines(output_to(stream, terminal=terminal), clients=9) as view:
        view.references([0.9], [0.8])
        view.progress(PROGRESS)
        view.step(
            SessionCheck(
                session_number=2,
                survivors=8,
                dropped=(),
                is_exact=exact,
                accuracy=0.75,
                l2_clip=1.25,
                fitted=fitted,
                standard_error=0.03121,
            )
        )
    return stream.getvalue()


def test_a_pipe_gets_one_line_per_step_with_both_references():
    lines = rendered_demo(terminal=False).splitlines()
    assert len(lines) == 2
    assert "9 clients and one aggregator" in lines[0]
    assert lines[1].endswith(
        "step 1: 8 inputs, sum exact, noise ± 0.0313, accuracy 75.0% "
        "(central noise 80.0%, no privacy 90.0%)"
    )


def test_an_adaptive_clip_is_shown_with_its_fitted_share():
    lines = rendered_demo(terminal=False, fitted=0.42).splitlines()
    assert lines[1].endswith("no privacy 90.0%), clip 1.25 fitted 42%")


def test_a_terminal_shows_the_progress_of_a_session():
    assert "\x1b[" in rendered_demo(terminal=True)


def test_a_sum_that_is_not_exact_is_called_so():
    assert "NOT EXACT" in rendered_demo(terminal=False, exact=False)


def test_the_demo_tolerates_the_loss_of_one_client_in_eight():
    assert PLAN.min_survivors == 8
    assert PLAN.min_survivors <= PLAN.min_clients <= PLAN.clients


def test_a_pipe_gets_the_state_again_after_three_silent_seconds():
    stream, now = io.StringIO(), [0.0]
    view = DemoLines(output_to(stream, terminal=False), clients=9, clock=lambda: now[0])
    view.stage("planning the noise")
    for second in range(8):
        now[0] = float(second)
        if second == 4:
            view.show_line("9 clients are there")
        view.repeat_state()
    assert stream.getvalue().splitlines() == [
        "  3.0 s  planning the noise",
        "  4.0 s  9 clients are there",
        "  7.0 s  planning the noise",
    ]


def test_the_thread_of_a_view_ends_with_the_view():
    stream = io.StringIO()
    with DemoLines(output_to(stream, terminal=False), clients=9) as view:
        assert view._repeater.is_alive()
    assert not view._repeater.is_alive()
