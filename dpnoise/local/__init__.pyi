from dpnoise.local.parameters import LocalParameters as LocalParameters
from dpnoise.local.reconstruction import (
    epsilon_against_reconstruction as epsilon_against_reconstruction,
    reconstruction_probability as reconstruction_probability,
)
from dpnoise.local.randomiser import (
    LocalRandomiser as LocalRandomiser,
    make_randomiser as make_randomiser,
    randomiser_names as randomiser_names,
)
from dpnoise.local.separated import best_magnitude_epsilon as best_magnitude_epsilon
