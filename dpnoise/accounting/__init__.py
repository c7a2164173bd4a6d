"""What was spent: bounds on the privacy loss of the releases of dpnoise."""

from typing import Final

from dpnoise.lazy_names import lazy_names

_MODULES: Final = {
    ".accountant": ("Accountant",),
    ".calibration": (
        "CalibratedNoise",
        "TriedAccountant",
        "calibrate",
        "calibrate_least",
    ),
    ".catalogue": (
        "MAX_ACCOUNTING_COST",
        "accountant_names",
        "accounting_cost",
        "check_accounting_cost",
        "default_accountant",
        "default_accountants",
        "make_accountant",
        "register_accountant",
    ),
    ".interoperability": ("to_dp_accounting",),
    ".statement": (
        "PrivacyStatement",
        "Proof",
        "Status",
        "as_own_work",
        "privacy_unit",
    ),
}

__all__, __getattr__, __dir__ = lazy_names(__name__, _MODULES)
