"""Progress is for people at a terminal, and goes before anything else is printed."""

import io

import pytest

from secagg.cli import main
from secagg.cli.output import Output, ProgressBar


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Full(Terminal):
    writes = 0

    def write(self, _):
        self.writes += 1
        raise OSError("it is full")


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")


def bar(stream, *, as_json=False, clock=lambda: 0.0):
    return ProgressBar("work", as_json=as_json, stream=stream, clock=clock)


def test_the_length_of_a_bar_shows_the_completed_part():
    stream = Terminal()
    bar(stream).show("uploading", 1, 4)
    assert stream.getvalue() == f"\r\x1b[Kwork {'█' * 6}{'░' * 18} 1 of 4, uploading"


def test_without_a_number_only_the_state_is_shown_and_truncated():
    stream = Terminal()
    bar(stream).show("x" * 100)
    assert stream.getvalue() == "\r\x1b[K" + f"work: {'x' * 100}"[:59]


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_pipes_and_json_output_get_no_progress(stream):
    shown = bar(stream, as_json=stream.isatty())
    shown.show("uploading", 1, 4)
    shown.clear()
    assert not stream.getvalue()


def test_the_progress_is_written_at_most_ten_times_a_second():
    stream, now = Terminal(), [0.0]
    shown = bar(stream, clock=lambda: now[0])
    for moment in range(101):
        now[0] = moment / 100
        shown.show(str(moment))
    assert 10 <= stream.getvalue().count("work") <= 11


def test_a_line_of_output_is_printed_above_the_progress(monkeypatch):
    both = Terminal()
    monkeypatch.setattr("sys.stderr", both)
    monkeypatch.setattr("sys.stdout", both)
    monkeypatch.setenv("TERM", "dumb")
    output = Output(as_json=False)
    with output.progress("work") as show:
        show("first")
        output.line("a line")
    assert both.getvalue() == (
        "\r\x1b[Kwork: first\r\x1b[Ka line\n\r\x1b[Kwork: first\r\x1b[K"
    )


def test_a_terminal_that_fails_does_not_stop_the_work():
    stream, now = Full(), [0.0]
    shown = bar(stream, clock=lambda: now[0])
    shown.show("first")
    now[0] = 1.0
    shown.show("second")
    assert stream.writes == 1


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["simulate", "--clients", "4", "--dimension", "3"], "simulating █"),
        (
            [
                *("plan", "--clients", "100", "--dimension", "10", "--epsilon", "1"),
                *("--delta", "1e-5", "--l2-clip", "1", "--mechanism", "ddgauss"),
            ],
            "planning: ",
        ),
    ],
)
def test_long_commands_show_progress_only_on_a_terminal(
    words, shown, monkeypatch, capsys
):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    assert main(words) == 0
    assert shown in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert "\x1b" not in capsys.readouterr().out
    terminal.truncate(0)
    assert main([*words, "--json"]) == 0
    assert "\r" not in terminal.getvalue()
