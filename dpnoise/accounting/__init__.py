"""What was spent: bounds on the privacy loss of the releases of dpnoise."""

from dpnoise.accounting.accountant import Accountant
from dpnoise.accounting.calibration import calibrate
from dpnoise.accounting.cost import expected_seconds
from dpnoise.accounting.interoperability import to_dp_accounting
from dpnoise.accounting.registry import (
    accountant_names,
    default_accountant,
    make_accountant,
)
from dpnoise.accounting.statement import PrivacyStatement, Status

__all__ = [
    "Accountant",
    "PrivacyStatement",
    "Status",
    "accountant_names",
    "calibrate",
    "default_accountant",
    "expected_seconds",
    "make_accountant",
    "to_dp_accounting",
]
