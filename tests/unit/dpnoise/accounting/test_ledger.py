"""The write-ahead ledger."""

import math
import sqlite3
import threading
from fractions import Fraction

import pytest

from dpnoise.accounting import make_accountant
from dpnoise.accounting.ledger import Budget, PrivacyLedger
from dpnoise.errors import BudgetExceededError, ParameterError
from dpnoise.events import (
    Adversary,
    DiscreteGaussianEvent,
    PoissonSampled,
    Repeated,
    SkellamEvent,
)

RELEASE = SkellamEvent(64, Fraction(2000), 4.0)
BUDGET = Budget(1.0, 1e-5, "skellam-gdp", Adversary.SERVER)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite3"


@pytest.fixture
def ledger(path):
    with PrivacyLedger(path) as opened:
        opened.open_account("task:digits", BUDGET)
        opened.open_account(
            "client:7", Budget(0.6, 1e-5, "skellam-gdp", Adversary.SERVER)
        )
        yield opened


def spend_until_refused(ledger, accounts, release=RELEASE):
    """Return how many steps were granted and the error that ended them."""
    for step in range(100):
        try:
            ledger.spend(accounts, f"step {step}", release)
        except BudgetExceededError as error:
            return step, error
    pytest.fail("the budget never ended")


def expected(count):
    account = make_accountant("skellam-gdp", adversary=Adversary.SERVER)
    return account.compose(Repeated(RELEASE, count)).epsilon(1e-5)


def test_every_account_is_charged_and_the_charge_survives_a_restart(ledger, path):
    ledger.spend(["task:digits", "client:7"], "step 1", RELEASE)
    statements = ledger.spend(["task:digits"], "step 2", RELEASE)
    assert statements["task:digits"].epsilon == expected(2)
    ledger.close()
    with PrivacyLedger(path) as reopened:
        assert reopened.spent("task:digits").epsilon == expected(2)
        assert reopened.spent("client:7").epsilon == expected(1)
        assert reopened.remaining("task:digits") == pytest.approx(1.0 - expected(2))


def test_a_charge_is_on_disk_before_spend_returns(ledger, path):
    ledger.spend(["task:digits"], "step 1", RELEASE)
    # Another process reads the file while the first one still holds it open.
    with sqlite3.connect(path) as other:
        (count,) = other.execute("SELECT count(*) FROM entry").fetchone()
    other.close()
    assert count == 1


def test_overspending_is_refused_for_all_accounts_and_records_nothing(ledger):
    allowed, error = spend_until_refused(ledger, ["task:digits", "client:7"])
    assert "do not release" in str(error)
    assert error.account == "client:7"
    assert expected(allowed) <= 0.6 < expected(allowed + 1)
    assert ledger.spent("task:digits").epsilon == expected(allowed)
    # The task itself can still afford a step without that client.
    ledger.spend(["task:digits"], "without client 7", RELEASE)


def test_a_retry_is_a_no_op_and_a_contradiction_is_an_error(ledger):
    first = ledger.spend(["task:digits"], "step 1", RELEASE)
    assert ledger.spend(["task:digits"], "step 1", RELEASE) == first
    other = SkellamEvent(64, Fraction(2001), 4.0)
    with pytest.raises(ParameterError, match="names another release"):
        ledger.spend(["task:digits"], "step 1", other)
    with pytest.raises(ParameterError, match="names another release"):
        ledger.spend(["task:digits", "client:7"], "step 1", RELEASE)
    assert ledger.spent("task:digits").epsilon == expected(1)


def test_a_retry_succeeds_even_when_the_budget_is_used_up(ledger):
    granted, _ = spend_until_refused(ledger, ["client:7"])
    ledger.spend(["client:7"], f"step {granted - 1}", RELEASE)


def test_budgets_are_fixed_when_an_account_is_opened(ledger):
    ledger.open_account("task:digits", BUDGET)
    with pytest.raises(ParameterError, match="another budget"):
        ledger.open_account(
            "task:digits", Budget(2.0, 1e-5, "skellam-gdp", Adversary.SERVER)
        )


@pytest.mark.parametrize("accounts", [[], ["task:digits", "task:digits"], ["nobody"]])
def test_accounts_must_be_open_and_named_once(ledger, accounts):
    with pytest.raises(ParameterError) as caught:
        ledger.spend(accounts, "step 1", RELEASE)
    assert caught.value.parameter == "accounts"


@pytest.mark.parametrize("name", ["", "x" * 513])
def test_names_have_a_bounded_length(ledger, name):
    with pytest.raises(ParameterError, match="characters"):
        ledger.spend(["task:digits"], name, RELEASE)
    with pytest.raises(ParameterError, match="characters"):
        ledger.open_account(name, BUDGET)


def test_a_file_that_is_no_ledger_is_refused(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"this is not a database, but long enough to look at" * 40)
    with pytest.raises(ParameterError, match="path"):
        PrivacyLedger(path)
    with pytest.raises(ParameterError, match="path"):
        PrivacyLedger(tmp_path / "missing" / "ledger.sqlite3")


def test_two_processes_never_both_spend_the_last_of_a_budget(path):
    budget = Budget(expected(10) * 1.001, 1e-5, "skellam-gdp", Adversary.SERVER)
    with PrivacyLedger(path) as ledger:
        ledger.open_account("task", budget)
    granted = []

    def spend_all(worker):
        with PrivacyLedger(path) as ledger:
            for step in range(10):
                try:
                    ledger.spend(["task"], f"{worker}/{step}", RELEASE)
                except BudgetExceededError:
                    continue
                granted.append((worker, step))

    threads = [threading.Thread(target=spend_all, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 10


def test_a_filter_judges_by_its_one_order_only(path):
    order = 20.0
    budget = Budget(1.0, 1e-5, "zcdp", Adversary.SERVER, order=order)
    assert Budget.from_text(budget.to_text()) == budget
    release = DiscreteGaussianEvent(64, Fraction(2000), 4.0)
    per_release = order * 16 / 4000
    room = 1.0 - (
        (math.log(1e5) - math.log(order)) / (order - 1) + math.log1p(-1 / order)
    )
    with PrivacyLedger(path) as ledger:
        ledger.open_account("client", budget)
        granted, _ = spend_until_refused(ledger, ["client"], release)
    assert granted == math.floor(room / per_release)


def test_a_filter_whose_order_no_theorem_covers_grants_nothing(path):
    budget = Budget(5.0, 1e-5, "zcdp", Adversary.MODEL_READER, order=20.5)
    sampled = PoissonSampled(DiscreteGaussianEvent(64, Fraction(2000), 4.0), 0.1)
    with PrivacyLedger(path) as ledger:
        ledger.open_account("client", budget)
        with pytest.raises(BudgetExceededError, match="inf"):
            ledger.spend(["client"], "1", sampled)


@pytest.mark.parametrize(
    ("change", "parameter"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"accountant": "none"}, "accountant"),
        ({"order": 1.0}, "order"),
        ({"accountant": "skellam-gdp", "order": 8.0}, "accountant"),
    ],
)
def test_an_impossible_budget_is_refused_by_name(change, parameter):
    arguments = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "accountant": "zcdp",
        "adversary": Adversary.SERVER,
        **change,
    }
    with pytest.raises(ParameterError) as caught:
        Budget(**arguments)
    assert caught.value.parameter == parameter
