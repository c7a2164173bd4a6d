"""Cases of several sessions, of restarts and of time, each by its name."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final, Protocol

import numpy as np

from secagg.conformance.lies import LIES
from secagg.conformance.noise_law import is_alike
from secagg.conformance.run import BrokenRuleError, ProgramAnswer, Run
from secagg.conformance.scene import NOW, TESTED
from secagg.protocol.messages import Aborted, Released, Upload


class PlayedCase(Protocol):
    """What a play knows of its case."""

    @property
    def codes(self) -> Iterable[str]:
        """Codes with which the program may leave."""
        ...

    @property
    def at(self) -> str:
        """Name of an update."""
        ...

    @property
    def lie(self) -> tuple[Any, ...]:
        """Arguments."""
        ...


Make = Callable[..., Run]
Play = Callable[[Make, PlayedCase], None]
# R11.3-1: ten for each session of the budget.
_ROSTERS: Final = 10
# Fewer kinds of bytes in 32 are no key, but a length between zeros.
_ZEROS: Final = 8
PLAYS: Final[dict[str, Play]] = {}


def _play(make: Play) -> Play:
    PLAYS[make.__name__] = make
    return make


def _end(run: Run, fate: int = 0) -> None:
    """End a session without a sum."""
    (ending,) = LIES["aborted"](run, b"", fate, "CANCELLED")
    answer = run.update(ending if isinstance(ending, bytes) else b"")
    if not answer.ended:
        raise BrokenRuleError("it does not say that the session has ended")


def _play_session(run: Run) -> Run:
    run.join()
    run.finish()
    return run


@_play
def same_number(make: Make, case: PlayedCase) -> None:
    """The number of a session that is over is offered again."""
    _play_session(make())
    again = make(seed=bytes(31) + b"\1")
    again.line["forget"] = False
    again.check_left(again.begin(), case.codes)


@_play
def smaller_number(make: Make, case: PlayedCase) -> None:
    """A smaller number than that of a session that was joined is offered."""
    first = make(number=9)
    first.line["forget"] = True
    first.join()
    _end(first)
    run = make(number=8)
    run.check_left(run.begin(), case.codes)


@_play
def second_session(make: Make, _: PlayedCase) -> None:
    """A second session of the task gives a right sum as well."""
    _play_session(make())
    _play_session(make(number=2))


@_play
def offer_then_list(make: Make, case: PlayedCase) -> None:
    """An offer with a lying list is refused, and locks the program out of nothing."""
    run = make()
    (offer,) = LIES["trust"](run, run.server.offer, *case.lie)
    run.check_left(run.begin(offer if isinstance(offer, bytes) else b""), case.codes)
    second = make(number=2)
    _play_session(second)


@_play
def older_list(make: Make, case: PlayedCase) -> None:
    """After a session by list 7 another one goes by no list."""
    _play_session(make())
    run = make(number=2)
    bare = run.offer.parameters.trust
    if bare is None:
        raise TypeError("the profile has no trust")
    parameters = run.offer.parameters.under(
        type(bare)(bare.trust_domain, bare.enrolment_key)
    )
    offer = replace(run.offer, parameters=parameters).encode()
    run.line["revocations"] = ""
    run.check_left(run.begin(offer), case.codes)


@_play
def restart_everywhere(make: Make, _: PlayedCase) -> None:
    """The program restarts after each of its messages, and says the same again."""
    run = make()
    run.join()
    while True:
        before = tuple(run.sent)
        answer = run.restart()
        if answer.left or answer.ended:
            raise BrokenRuleError(
                f"after a restart it leaves with {answer.left or answer.ended}"
            )
        if run.unsent_messages(answer):
            raise BrokenRuleError("after a restart it says something else (R6.1-1)")
        if before[-1] not in answer.messages and not answer.view:
            raise BrokenRuleError("after a restart it does not say the same again")
        update = run.next()
        if update[0] in {Released.KIND, Aborted.KIND}:
            break
        # And once more between the view and the vector.
        found = run.update(update)
        if found.view:
            run.deliver(found)
            again = run.restart()
            if again.view != found.view:
                raise BrokenRuleError("after a restart it shows another view")
            found = again
        run.deliver_answer(found)
    run.finish()


@_play
def restart_with_other_vector(make: Make, _: PlayedCase) -> None:
    """After a restart the program has another vector, and sends the bound one."""
    run = make()
    run.join()
    run.deliver_update(run.play_until("delivery"))
    first = run.sent[-1]
    kept, given = run.line["vector"], list(run.line["vector"])
    given[0] = str(int(given[0]) + 1)
    run.line["vector"] = given
    answer = run.restart()
    run.line["vector"] = kept
    if answer.view:
        answer = run.call({"do": "bind", "now": run.now})
    if any(message != first for message in run.unsent_messages(answer)):
        raise BrokenRuleError("it has sent two masked inputs in one session (R5.3-2)")
    if answer.left:
        return  # another vector was refused: nothing more leaves
    run.finish()


@_play
def restart_at_another(make: Make, case: PlayedCase) -> None:
    """After a restart another aggregator answers."""
    run = make()
    run.join()
    if case.at == "survivors":
        run.deliver_update(run.play_until("delivery"))
        update = run.play_until("survivors")
    else:
        update = run.play_until("roster")
    run.line["aggregator"] = "another"
    answer = run.restart()
    if not answer.left:
        answer = run.update(update)
    if run.unsent_messages(answer) or answer.messages or answer.view:
        raise BrokenRuleError("it answers to another aggregator (R5.0-6)")


@_play
def another_name(make: Make, case: PlayedCase) -> None:
    """The offer is of another aggregator than the one that is connected."""
    run = make(aggregator="another")
    run.check_left(run.begin(), case.codes)


@_play
def view_refused(make: Make, case: PlayedCase) -> None:
    """The aggregator refuses the view: no input is bound, and nothing leaves."""
    run = make()
    run.join()
    update = run.play_until("delivery")
    answer = run.update(update)
    run.deliver(answer)
    if not answer.view or any(
        message[0] == Upload.KIND for message in run.unsent_messages(answer)
    ):
        raise BrokenRuleError("it does not show its view before its vector is bound")
    refused = run.call({"do": "refused", "code": "VIEW_DIFFERS", "now": run.now})
    run.check_left(refused, case.codes)
    again = run.update(update)
    if run.unsent_messages(again) or again.view:
        raise BrokenRuleError("it continues after its view was refused")


@_play
def upload_after_view(make: Make, _: PlayedCase) -> None:
    """No upload leaves before the aggregator has taken the view."""
    run = make()
    run.join()
    answer = run.update(run.play_until("delivery"))
    if any(message[0] == Upload.KIND for message in answer.messages) or not answer.view:
        raise BrokenRuleError("its upload leaves before its view is shown (R5.3-14)")
    run.deliver_answer(answer)
    run.finish()


@_play
def late(make: Make, case: PlayedCase) -> None:
    """The session's end has passed: nothing more leaves."""
    run = make()
    run.join()
    update = run.play_until(case.at)
    run.now = run.offer.session_end
    answer = run.update(update)
    if run.unsent_messages(answer) or answer.view:
        raise BrokenRuleError("it answers after the session's end (R5-7)")


@_play
def clock(make: Make, case: PlayedCase) -> None:
    """The program's clock says that the session is over, or ends too late."""
    run = make(now=NOW + case.lie[0])
    run.check_left(run.begin(), case.codes)


@_play
def unusable(make: Make, case: PlayedCase) -> None:
    """A vector that is no vector of an exact task keeps the program away."""
    run = make()
    run.line["vector"] = [case.lie[0], *run.line["vector"][1:]]
    answer = run.begin()
    if answer.messages or not answer.left:
        raise BrokenRuleError("it advertises with a vector that cannot be summed")


@_play
def unusable_with_noise(make: Make, _: PlayedCase) -> None:
    """With noise zeros take the place of a vector that cannot be used."""
    run = make(vector=[0.0] * make().scene.dim)
    run.line["vector"] = ["NaN", *run.line["vector"][1:]]
    answer = run.begin()
    if answer.left and not answer.messages:
        return  # known before the advert: it stays away (R3.5-5)
    run.deliver(answer)
    run.finish()


@_play
def program_drops_out(make: Make, case: PlayedCase) -> None:
    """The program falls silent, and the others rebuild what they need of it."""
    run = make()
    run.join()
    run.play_until(case.at)
    while not run.server.is_over:
        run.next()
    run.check_sum()
    result = run.server.result
    if result is None or TESTED in result.receipt.survivors:
        raise BrokenRuleError("the sum should be that of the others")


def _charged(make: Make, case: PlayedCase, *, fate: int | None) -> ProgramAnswer:
    """Join, bind and end a session; return the answer to the next offer."""
    run = make()
    run.join()
    if fate is None:
        run.finish()
    else:
        update = run.play_until(case.at)
        if case.at == "delivery":
            run.deliver_update(update)
            run.next()
        else:
            run.deliver_update(update)
        _end(run, fate)
    second = make(number=2)
    answer = second.begin()
    if answer.messages:
        second.deliver(answer)
    return answer


@_play
def sum_spends_budget(make: Make, case: PlayedCase) -> None:
    """A budget of one session is spent by a sum."""
    _refused(_charged(make, case, fate=None))


@_play
def charge_kept(make: Make, case: PlayedCase) -> None:
    """A charge is kept after this fate."""
    _refused(_charged(make, case, fate=case.lie[0]))


@_play
def charge_returned(make: Make, case: PlayedCase) -> None:
    """A charge comes back after this fate."""
    answer = _charged(make, case, fate=case.lie[0])
    if not answer.messages:
        raise BrokenRuleError(
            f"the charge comes back, and it stays away with {answer.left} (R5.6-3)"
        )


def _refused(answer: ProgramAnswer) -> None:
    if answer.messages or not answer.left:
        raise BrokenRuleError("it joins a session that its budget does not cover")


@_play
def other_noise(make: Make, case: PlayedCase) -> None:
    """A task that was charged comes back with another noise block."""
    _play_session(make())
    run = make(number=2, scene=case.lie[0])
    run.check_left(run.begin(), case.codes)


@_play
def restart_keeps_the_charge(make: Make, _: PlayedCase) -> None:
    """A budget that was spent before a restart is spent after it."""
    _play_session(make()).restart()
    _refused(make(number=2).begin())


@_play
def rosters_are_counted(make: Make, _: PlayedCase) -> None:
    """On a ring the eleventh roster of one session's budget is not accepted."""
    for number in range(1, _ROSTERS + 2):
        run = make(number=number, seed=sha256(b"%d" % number).digest())
        answer = run.begin()
        if answer.left:
            if number > _ROSTERS:
                return
            raise BrokenRuleError(f"it leaves session {number} with {answer.left}")
        run.deliver(answer)
        answer = run.update(run.play_until("roster"))
        if answer.left and number > _ROSTERS:
            return
        run.deliver(answer)
        _end(run)
    raise BrokenRuleError("it has accepted eleven rosters in a budget of one session")


@_play
def fresh_noise(make: Make, _: PlayedCase) -> None:
    """The noise of two sessions has nothing in common."""
    first = _play_session(make())
    second = _play_session(make(number=2))
    one, two = first.own_residues(), second.own_residues()
    if np.array_equal(one, two) or is_alike(one, two, float(first.kept_variance)):
        raise BrokenRuleError("two sessions have the same noise (§6.7)")


@_play
def fresh_keys(make: Make, _: PlayedCase) -> None:
    """No key and no commitment of one session occurs in another."""
    adverts = []
    for number in (1, 2):
        run = make(number=number)
        run.join()
        _end(run)
        adverts.append(run.sent[0])
    parts = [
        {advert[i : i + 32] for i in range(len(advert) - 31)} for advert in adverts
    ]
    shared = [each for each in parts[0] & parts[1] if len(set(each)) > _ZEROS]
    if shared:
        raise BrokenRuleError("two sessions have a key in common")
