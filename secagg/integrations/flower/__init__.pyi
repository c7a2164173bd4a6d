from secagg.integrations.flower.grid import SecureGrid as SecureGrid
from secagg.integrations.flower.mod import secagg_mod as secagg_mod
from secagg.integrations.flower.task import SecureTask as SecureTask
