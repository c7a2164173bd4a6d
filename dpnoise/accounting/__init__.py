"""What was spent: bounds on the privacy loss of the releases of dpnoise."""

from dpnoise.accounting.accountant import Accountant
from dpnoise.accounting.calibration import (
    CalibratedNoise,
    TriedAccountant,
    calibrate,
    calibrate_least,
)
from dpnoise.accounting.catalogue import (
    MAX_ACCOUNTING_COST,
    accountant_names,
    accounting_cost,
    check_accounting_cost,
    default_accountant,
    default_accountants,
    make_accountant,
)
from dpnoise.accounting.interoperability import to_dp_accounting
from dpnoise.accounting.statement import (
    PrivacyStatement,
    Proof,
    Status,
    privacy_unit,
)

__all__ = [
    "MAX_ACCOUNTING_COST",
    "Accountant",
    "CalibratedNoise",
    "PrivacyStatement",
    "Proof",
    "Status",
    "TriedAccountant",
    "accountant_names",
    "accounting_cost",
    "calibrate",
    "calibrate_least",
    "check_accounting_cost",
    "default_accountant",
    "default_accountants",
    "make_accountant",
    "privacy_unit",
    "to_dp_accounting",
]
