"""Figure 3 of [Aga21]: real vectors, rounded under a norm bound, at several scales.

Conditional rounding lengthens a vector by up to half a step per coordinate, so noise
that is proportional to the clip protects less on a coarse grid. Upper row: one release
of a short vector. Lower row: the federated EMNIST setting, sampled and composed.

This project's default rounds without a norm bound. Its curve, on a grid of 8 steps per
clip, is the same in every panel of a row.

The transcribed caption has lost its numbers. The federated row uses the settings of the
experiment script that the authors published; the upper row is assumed.
"""

import dataclasses
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from figure import Curve, Figure, Panel
from reproduction import Options, Reproduction, Usual, run
from required_noise import Budget, Setting

from dpnoise.accounting import make_accountant
from dpnoise.events import GaussianEvent, NoiseEvent

OUR_STEPS: Final = 8.0


@dataclass(frozen=True, slots=True)
class Row:
    """One row of panels.

    Args:
        name: Title.
        dim: Coordinates after padding.
        clients: Noise shares.
        delta: Failure probability.
        steps: Number of releases.
        sampling_rate: Rate of Poisson sampling.
        grid_steps: Grid steps per clip of the panels.
        multipliers: Noise standard deviations per clip.
    """

    name: str
    dim: int
    clients: int
    delta: float
    steps: int
    sampling_rate: float
    grid_steps: tuple[float, ...]
    multipliers: tuple[float, ...]

    @property
    def budget(self) -> Budget:
        """The releases; its ε is not used."""
        return Budget(
            1.0, self.delta, steps=self.steps, sampling_rate=self.sampling_rate
        )


ROWS: Final = (
    Row(
        name="one release, d = 1024, n = 1000",
        dim=1 << 10,
        clients=1000,
        delta=1e-6,
        steps=1,
        sampling_rate=1.0,
        grid_steps=(16.0, 64.0, 256.0),
        multipliers=(1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0),
    ),
    Row(
        name="hypothetical: 100 of 3400, T = 1500",
        dim=1 << 20,
        clients=100,
        delta=1.0 / 3400,
        steps=1500,
        sampling_rate=100.0 / 3400,
        grid_steps=(512.0, 2048.0, 8192.0),
        multipliers=(0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5),
    ),
)

GAUSSIAN: Final = "central Gaussian"
_CURVES: Final = (
    (GAUSSIAN, "gaussian", ":", False),
    ("DDGauss, RDP [KLS21]", "ddgauss", "-", True),
    ("Skellam, RDP [Aga21] Cor. 3.6", "skellam", "-", False),
    ("Skellam, Gaussian-DP certificate (ours)", "skellam-ours", "-", False),
    ("ours: skellam-mixture at 8 steps per clip", "ours", "-", False),
)


SETTINGS: Final = {
    "multipliers": Usual(ROWS[0].multipliers, tiny=ROWS[0].multipliers[::4]),
    "grid_steps": Usual(ROWS[0].grid_steps),
    "dimension": Usual((ROWS[0].dim,), one=True),
    "clients": Usual((ROWS[0].clients,), one=True),
    "delta": Usual((ROWS[0].delta,), one=True),
}
"""Of the upper row; a caller who sets one of them gets the upper row alone."""


def _rows(options: Options) -> tuple[Row, ...]:
    """Return the settings of the publication, or the caller's own."""
    upper, lower = ROWS
    mine = dataclasses.replace(
        upper,
        dim=options.count("dimension"),
        clients=options.count("clients"),
        delta=options.number("delta"),
        grid_steps=options.numbers("grid_steps"),
        multipliers=options.numbers("multipliers"),
    )
    if options.own:
        name = f"one release, d = {mine.dim}, n = {mine.clients}"
        return (dataclasses.replace(mine, name=name),)
    if options.tiny:
        lower = dataclasses.replace(lower, multipliers=lower.multipliers[::4])
    return mine, lower


def reproduce(options: Options) -> Reproduction:
    """Compute the table and the picture."""
    rows: list[dict[str, object]] = []
    settings = _rows(options)
    for row in settings:
        for multiplier in row.multipliers:
            shared = _independent_of_scale(row, multiplier)
            rows.extend(
                {
                    "setting": row.name,
                    "grid_steps_per_clip": steps,
                    "noise_multiplier": multiplier,
                    **epsilons(row, steps, multiplier),
                    **shared,
                }
                for steps in row.grid_steps
            )
    emnist = ROWS[1]
    return Reproduction(
        name="aga21_figure3",
        stated={"rounding bias": "e^(-1/2)", "noise": "n equal shares"},
        assumed={
            "upper row": "d = 1024, n = 1000, delta = 1e-6, 16/64/256 steps per clip",
            "lower row": (
                "n = 100 of N = 3400 clients, T = 1500, d = 2^20 from the authors' "
                "script; delta = 1/N, 512/2048/8192 steps per clip assumed"
            ),
            "sampling": (
                f"Poisson, q = {emnist.sampling_rate:.6g}; hypothetical but for the "
                "central Gaussian: the variance of a sum of noise shares and the "
                "number of its inputs tell who was sampled"
            ),
            "adversary": "model reader where sampled, server otherwise",
        },
        rows=rows,
        findings=_findings(rows, settings),
        figure=_figure(rows, settings),
    )


def epsilons(row: Row, grid_steps: float, multiplier: float) -> dict[str, float]:
    """Return ε under every analysis that depends on the scale.

    Args:
        row: The setting.
        grid_steps: Grid steps per clip.
        multiplier: Noise standard deviation per clip.
    """
    setting = Setting(
        dim=row.dim, radius=1.0, scale_factor=grid_steps, clients=row.clients
    )
    variance = Fraction((multiplier * grid_steps) ** 2)
    accountants = ("ddgauss-paper", "skellam-paper", "skellam-gdp")
    return {
        name: _stated(row, accountant, setting.release(accountant, variance))
        for (name, *_), accountant in zip(_CURVES[1:4], accountants, strict=True)
    }


def _independent_of_scale(row: Row, multiplier: float) -> dict[str, float]:
    gaussian = GaussianEvent(row.dim, multiplier**2, 1.0)
    setting = Setting(
        dim=row.dim, radius=1.0, scale_factor=OUR_STEPS, clients=row.clients
    )
    accountant = "mixture-contour" if row.steps == 1 else "mixture-pld"
    mixture = setting.mixture(Fraction((multiplier * OUR_STEPS) ** 2))
    return {
        GAUSSIAN: _stated(row, "gaussian-pld", gaussian),
        _CURVES[4][0]: _stated(row, accountant, mixture),
    }


def _stated(row: Row, accountant: str, release: NoiseEvent) -> float:
    if release.noise_in_shares:
        accountant = row.budget.accountant(accountant)
    account = make_accountant(accountant, adversary=row.budget.adversary)
    return account.compose(row.budget.releases(release)).epsilon(row.delta)


def _figure(rows: list[dict[str, object]], settings: Sequence[Row]) -> Figure:
    panels = []
    for row in settings:
        for steps in row.grid_steps:
            here = [
                entry
                for entry in rows
                if (entry["setting"], entry["grid_steps_per_clip"]) == (row.name, steps)
            ]
            x = [float(str(entry["noise_multiplier"])) for entry in here]
            panels.append(
                Panel(
                    title=f"{row.name}\n{steps:g} steps per clip",
                    curves=[
                        Curve(
                            name,
                            family,
                            x,
                            [float(str(entry[name])) for entry in here],
                            style=style,
                            wide=wide,
                        )
                        for name, family, style, wide in _CURVES
                    ],
                    x_label="noise standard deviation / clip",
                    y_label="ε",
                    log_x=True,
                    x_ticks=_ticks(row.multipliers),
                    y_limits=(0.3, 30.0) if row.steps == 1 else (2.0, 300.0),
                )
            )
    return Figure(
        "Rounded vectors at three scales (Figure 3 of [Aga21])", panels, columns=3
    )


def _ticks(multipliers: Sequence[float]) -> list[float]:
    """A few of them: the first, the third, the fifth and the last."""
    return sorted({*multipliers[:5:2], multipliers[-1]})


def _findings(rows: list[dict[str, object]], settings: Sequence[Row]) -> list[str]:
    found = []
    for row in settings:
        for steps in row.grid_steps:
            here = [
                entry
                for entry in rows
                if (entry["setting"], entry["grid_steps_per_clip"]) == (row.name, steps)
            ]
            middle = here[len(here) // 2]
            figures = ", ".join(
                f"{name} {float(str(middle[name])):.4g}" for name, *_ in _CURVES
            )
            found.append(
                f"{row.name}, {steps:g} steps per clip, noise multiplier "
                f"{middle['noise_multiplier']}: epsilon {figures}"
            )
    worst = max(
        float(str(entry[_CURVES[4][0]])) / float(str(entry[GAUSSIAN])) for entry in rows
    )
    smallest = min(row.grid_steps[0] for row in settings)
    found.append(
        f"ours at {OUR_STEPS:g} steps per clip stays within {worst - 1.0:.1%} of the "
        f"Gaussian's epsilon; the published bounds use {smallest:g} steps and more"
    )
    if not math.isfinite(worst):
        found.append("ours is infinite somewhere")
    return found


if __name__ == "__main__":
    sys.exit(run(reproduce, __doc__, SETTINGS))
