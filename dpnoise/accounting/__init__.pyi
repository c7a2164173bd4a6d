from dpnoise.accounting.accountant import Accountant as Accountant
from dpnoise.accounting.calibration import (
    CalibratedNoise as CalibratedNoise,
    TriedAccountant as TriedAccountant,
    calibrate as calibrate,
    calibrate_least as calibrate_least,
)
from dpnoise.accounting.catalogue import (
    MAX_ACCOUNTING_COST as MAX_ACCOUNTING_COST,
    accountant_names as accountant_names,
    accounting_cost as accounting_cost,
    check_accounting_cost as check_accounting_cost,
    default_accountant as default_accountant,
    default_accountants as default_accountants,
    make_accountant as make_accountant,
    register_accountant as register_accountant,
)
from dpnoise.accounting.interoperability import to_dp_accounting as to_dp_accounting
from dpnoise.accounting.statement import (
    PrivacyStatement as PrivacyStatement,
    Proof as Proof,
    Status as Status,
    weakened as weakened,
    privacy_unit as privacy_unit,
)
