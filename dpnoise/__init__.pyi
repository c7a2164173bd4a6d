from dpnoise import (
    accounting as accounting,
    answers as answers,
    bench as bench,
    encoding as encoding,
    errors as errors,
    events as events,
    local as local,
    mechanisms as mechanisms,
    planning as planning,
    samplers as samplers,
)
from dpnoise.accounting import (
    Accountant as Accountant,
    PrivacyStatement as PrivacyStatement,
    accountant_names as accountant_names,
    make_accountant as make_accountant,
    register_accountant as register_accountant,
)
from dpnoise.answers import (
    Choice as Choice,
    Histogram as Histogram,
    Mean as Mean,
    Quantiles as Quantiles,
    Votes as Votes,
)
from dpnoise.errors import DPNoiseError as DPNoiseError
from dpnoise.events import Adjacency as Adjacency, Adversary as Adversary
from dpnoise.mechanisms import (
    Mechanism as Mechanism,
    MechanismParameters as MechanismParameters,
    make_mechanism as make_mechanism,
    mechanism_names as mechanism_names,
    register_mechanism as register_mechanism,
)
from dpnoise.planning import Plan as Plan, plan as plan
from dpnoise.samplers import fresh_seed as fresh_seed
