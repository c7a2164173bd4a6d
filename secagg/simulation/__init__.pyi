from secagg.simulation.driver import (
    OFFERED_AT as OFFERED_AT,
    InProcessSession as InProcessSession,
    LossPlan as LossPlan,
    SessionResult as SessionResult,
    SimulatedSession as SimulatedSession,
    identity_of as identity_of,
    plan_losses as plan_losses,
    run_session as run_session,
    simulate_session as simulate_session,
)
from secagg.simulation.measurement import CostReport as CostReport
