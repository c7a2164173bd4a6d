"""What is known of an accountant stands in one row; no other module names it."""

import ast
import pickle
import re
from fractions import Fraction
from pathlib import Path

import pytest

from dpnoise.accounting import Status, accountant_names, make_accountant
from dpnoise.accounting.catalogue import (
    CATALOGUE,
    Form,
    accountant_class,
    accountant_entry,
    closed_forms,
)
from dpnoise.errors import UnknownEventError
from dpnoise.events import (
    Adversary,
    BinomialEvent,
    Composed,
    DiscreteGaussianEvent,
    DistributedDiscreteGaussianEvent,
    GaussianEvent,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
)

ROOT = Path(__file__).parents[2]
NAMES = re.compile(
    r"(?<![\w-])(?:" + "|".join(map(re.escape, accountant_names())) + r")(?![\w-])"
)
# A mechanism that reproduces a publication names the accountant of that publication.
PUBLISHED = {"dpnoise/mechanisms/smm.py": {"smm-paper"}}
RELEASES = {
    type(each): each
    for each in (
        SkellamEvent(4, Fraction(50), 2.0, 4.0, 1),
        SkellamMixtureEvent(64, Fraction(500), 4.0, 1.0),
        SkellamMixtureClippedEvent(64, Fraction(500), 4.0, 1),
        DistributedDiscreteGaussianEvent(64, 10, Fraction(50), 5.0),
        DiscreteGaussianEvent(4, Fraction(50), 2.0),
        BinomialEvent(4, 400, 2.0, 4.0, 1),
        GaussianEvent(64, 500.0, 5.0),
    )
}


def texts_of(tree):
    """Yield the string constants of a module that are no docstrings."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    prose = set()
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False):
            prose.add(node.body[0].value)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            prose.add(node.value)
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and node not in prose:
            yield node.value


def named_in(path):
    """Return the names of accountants that the code of a module holds."""
    found, source = set(), path.read_text()
    if NAMES.search(source):  # or none is in a string of it
        for text in texts_of(ast.parse(source)):
            found.update(NAMES.findall(text))
    return found


def own_names():
    """Return which names each module may hold: the catalogue all, others their own."""
    allowed = {"dpnoise/accounting/catalogue.py": set(accountant_names())} | PUBLISHED
    for row in CATALOGUE:
        path = f"dpnoise/accounting/{row.place.partition(':')[0].replace('.', '/')}.py"
        allowed.setdefault(path, set()).add(row.name)
    return allowed


def test_only_the_catalogue_names_accountants_of_other_modules():
    allowed = own_names()
    wrong = {}
    for package in ("dpnoise", "secagg"):
        for path in sorted((ROOT / package).rglob("*.py")):
            where = str(path.relative_to(ROOT))
            if foreign := named_in(path) - allowed.get(where, set()):
                wrong[where] = sorted(foreign)
    assert wrong == {}
    assert set(allowed) <= {
        str(path.relative_to(ROOT)) for path in (ROOT / "dpnoise").rglob("*.py")
    }


def test_an_accountant_named_in_another_module_is_detected(tmp_path):
    module = tmp_path / "module.py"
    module.write_text('"""On zcdp."""\nF = "not-zcdp"\nG = f"use zcdp for {F}"\n')
    assert named_in(module) == {"zcdp"}


@pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: row.name)
def test_each_catalogue_row_agrees_with_its_accountant(row):
    found = accountant_class(row.name)
    assert found.name == row.name
    assert found.adjacencies == row.adjacencies
    assert row.made_for <= row.covers
    assert not (row.is_default and row.is_fallback)
    if row.is_default or row.is_fallback:
        assert found.status_of_theorem in {Status.PROVEN, Status.CERTIFIED}
    for kind, release in RELEASES.items():
        account = make_accountant(row.name, adversary=Adversary.SERVER)
        if kind in row.covers:
            assert account.compose(release).epsilon(1e-5) > 0.0
        else:
            with pytest.raises(UnknownEventError, match=row.name):
                account.compose(release)


@pytest.mark.parametrize("name", accountant_names())
def test_accountants_of_every_kind_can_be_pickled(name):
    for hypothetical in ("", "hypothetical-"):
        for estimating in (False, True):
            account = make_accountant(
                hypothetical + name, adversary=Adversary.SERVER, estimating=estimating
            )
            again = pickle.loads(pickle.dumps(account))
            assert again.name == account.name == hypothetical + name
            assert again.statement(1e-5) == account.statement(1e-5)


def test_a_closed_form_covers_every_mechanism_some_accountant_composes_by_default():
    assert closed_forms(RELEASES[GaussianEvent])[0] == "skellam-gdp"
    for kind, release in RELEASES.items():
        first = closed_forms(release)[0]
        assert accountant_entry(first).form is Form.CLOSED
        assert kind in accountant_entry(first).made_for
    with pytest.raises(IndexError):
        closed_forms(
            Composed((RELEASES[BinomialEvent], RELEASES[SkellamMixtureEvent]))
        )[0]
