from secagg.learning.averaging import FederatedAveraging as FederatedAveraging
from secagg.learning.curve import (
    LearningCurve as LearningCurve,
    TrainingStep as TrainingStep,
)
from secagg.learning.learner import (
    Learner as Learner,
    LearningStep as LearningStep,
    Update as Update,
)
from secagg.learning.optimizers import (
    Optimizer as Optimizer,
    ServerOptimizer as ServerOptimizer,
)
from secagg.learning.vectors import (
    VectorEntry as VectorEntry,
    VectorSpec as VectorSpec,
)
