"""What a plan says: parameters, figures, and the grounds of each.

* A plan is a value. It holds the request, the parameters and the statements. So any
  reader with the same version of this package can check it again.
* The keys of `to_dict` are an interface; `secagg plan --json` prints them.

* The error at other bit widths is forecast through the noise model that the plan's own
  calibrations have fixed. A width that cannot hold the sum has no point.

It asks no accountant.
"""

import html
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from dpnoise.accounting import PrivacyStatement, privacy_unit
from dpnoise.events import Adversary
from dpnoise.floats import error_text, rational_text, sqrt_above, text_above
from dpnoise.mechanisms.error_forecast import ErrorForecast
from dpnoise.mechanisms.parameters import MechanismParameters
from dpnoise.mechanisms.registry import make_mechanism
from dpnoise.planning.accountant_choice import AccountantTried
from dpnoise.planning.request import PlanRequest, gaussian_variance_per_sensitivity
from dpnoise.planning.scale_search import NoiseFit, NoiseModel, best_scale

_PSEUDORANDOM: Final = (
    "Noise is expanded from secret 32-byte seeds by AES-256 in counter mode; figures "
    "hold against adversaries that cannot tell its output from random bits."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Parameters that keep a budget, with their forecast.

    Args:
        request: What was asked for.
        parameters: What to configure.
        noise_variance: Aggregate variance that the accountant requires, per
            coordinate, grid steps². The shares of every roster add up to at least it.
        noise_fit: What noise other scales are expected to need.
        accountant: Name of the accountant that calibrated the noise.
        accountants_tried: That one first, then the others that have a theorem.
        statement_server: What holds against the server; None if nothing does,
            because the server itself adds the noise.
        statement_model_reader: What holds against readers of the released sums.
        forecast: Error of the sum of every client's vector, the layers of noise taken
            back that no loss has made necessary.
        counted_mse: Expected squared error per coordinate if no more noise arrived
            than privacy requires, caller's units squared.
        gaussian_mse: The central analytic Gaussian's, same budget, same steps.
        upload_bytes: Bytes of one client's packed vector.
        notes: Sentences a reader of the plan should not miss.
    """

    request: PlanRequest
    parameters: MechanismParameters
    noise_variance: Fraction
    noise_fit: NoiseFit
    accountant: str
    accountants_tried: tuple[AccountantTried, ...]
    statement_server: PrivacyStatement | None
    statement_model_reader: PrivacyStatement
    forecast: ErrorForecast
    counted_mse: float
    gaussian_mse: float
    upload_bytes: int
    notes: tuple[str, ...] = ()

    @property
    def epsilon_server(self) -> float:
        """The server's ε; infinite if nothing holds against it."""
        statement = self.statement_server
        return math.inf if statement is None else statement.epsilon

    @property
    def epsilon_model_reader(self) -> float:
        """The ε of readers of the released sums."""
        return self.statement_model_reader.epsilon

    @property
    def share_at_smallest(self) -> float:
        """Variance that one client adds in the smallest session, grid steps²."""
        return self._share_at(self.parameters.noise_rule.min_survivors)

    @property
    def share_at_largest(self) -> float:
        """Variance that one client adds in the largest session, grid steps²."""
        return self._share_at(self.parameters.num_clients)

    def _share_at(self, roster: int) -> float:
        """Return the noise of one client at a size of the roster."""
        rule = self.parameters.noise_rule
        if self.request.is_central:
            return float(rule.counted_variance)
        return float(rule.session(roster).upload)

    @property
    def noise_overhead(self) -> float:
        """Variance that counts, over what the central Gaussian needs."""
        unit = self.parameters.scale_factor**2
        return (
            float(self.parameters.noise_rule.counted_variance)
            / unit
            / self.gaussian_mse
        )

    @property
    def most_noise_mse(self) -> float:
        """Squared error by noise where no client takes any back, per coordinate.

        Of the worst roster, caller's units²: `forecast.noise_mse` is that of a full
        session without losses that takes back what it can. Intervals that are to hold
        in any session go by this one.
        """
        noise = make_mechanism(self.parameters).total_noise_variance
        return float(noise) / self.parameters.scale_factor**2

    @property
    def count_standard_error(self) -> float | None:
        """Standard error of one count in a full session without losses.

        None for vectors that are no counts. Under secret selection that of the estimate
        of the count over all clients, if every client fills this one.
        """
        request = self.request
        if not request.mechanism_class.takes_counts:
            return None
        rate = float(request.selection)
        noise = self.forecast.noise_mse / rate**2
        largest = float(self.parameters.linf_bound or 1)
        return math.sqrt(noise + (1.0 / rate - 1.0) * request.clients * largest**2)

    @property
    def selection_mse(self) -> float:
        """Expected squared error by selection, per coordinate, caller's units².

        Of the estimate Σ/q of the sum of all clients' vectors, where Σ adds up those
        that were selected and all vectors are as long as the clip: (1−q)/q·n·r²/d.
        """
        request = self.request
        rest = 1 / request.selection - 1
        return float(rest) * request.clients * request.l2_clip**2 / request.dimension

    @property
    def estimate_mse(self) -> float:
        """Expected squared error of the estimated sum of all vectors, per coordinate.

        Caller's units². Without a selection the estimate is the sum, and this is
        `forecast.expected_mse`. With one it is the sum over q: noise grows by 1/q², and
        the error by selection is added.
        """
        noise = self.forecast.expected_mse / float(self.request.selection) ** 2
        return noise + self.selection_mse

    @property
    def standard_error(self) -> float:
        """Root of `estimate_mse`: of one entry of the sum of all vectors, rounded up.

        Caller's units, in a full session without losses. What one released sum holds
        is said by `ReleasedSum.standard_error`.
        """
        return sqrt_above(Fraction(self.estimate_mse))

    def __str__(self) -> str:
        """The plan as a table, with its notes below."""
        rows = self.table()
        width = max(len(label) for label, _ in rows)
        lines = [f"{label:<{width}}  {text}" for label, text in rows]
        return "\n".join([*lines, self.in_words, *(f"* {note}" for note in self.notes)])

    @property
    def linf_bound(self) -> Fraction:
        """Bound on every absolute coordinate before rounding, grid steps."""
        return make_mechanism(self.parameters).coordinate_cap

    @property
    def privacy_unit(self) -> str:
        """Whose data epsilon and delta protect, and in how many sessions."""
        return privacy_unit(self.request.charges)

    @property
    def in_words(self) -> str:
        """What is promised, against whom, for whose data and for which rosters."""
        stated, rule = self._calibrated, self.parameters.noise_rule
        whom = {
            Adversary.SERVER: "the server",
            Adversary.PARTICIPANT: "participants",
            Adversary.MODEL_READER: "readers of the sums, not against the server",
        }[stated.adversary]
        sentence = (
            f"ε {text_above(stated.epsilon, 4)} at δ {text_above(stated.delta, 3)} "
            f"against {whom} ({stated.grounds}, {stated.accountant}), for "
            f"{self.privacy_unit}"
        )
        if self.request.is_central:
            return f"{sentence}."
        least, most = rule.min_survivors, self.parameters.num_clients
        rosters = f"a roster of {most} of which no client is lost"
        if least < most:
            rosters = (
                f"any roster from {least} to {most} of which at least {least} and "
                f"{_percent(1 - rule.loss_fraction)} remain"
            )
        colluding = "no client colludes"
        if rule.colluders or rule.colluder_fraction:
            parts = [str(rule.colluders)] * bool(rule.colluders)
            parts += [_percent(rule.colluder_fraction)] * bool(rule.colluder_fraction)
            colluding = f"at most {' or '.join(parts)} collude"
        return f"{sentence}. It holds for {rosters} and {colluding}."

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        rows = "".join(
            f"<tr><th>{html.escape(label)}</th><td>{html.escape(text)}</td></tr>"
            for label, text in self.table()
        )
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        promise = html.escape(self.in_words)
        return f"<table>{rows}</table><p>{promise}</p><ul>{notes}</ul>"

    def table(self) -> tuple[tuple[str, str], ...]:
        """Return what people want to read of the plan: labels, and figures as text."""
        request, given, forecast = self.request, self.parameters, self.forecast
        ratio = forecast.expected_mse / self.gaussian_mse
        wrapped = (
            f"{forecast.expected_wrapped_coordinates:.3g} expected per sum "
            f"({forecast.wrap_probability:.3g} per entry)"
        )
        if request.sum_l2_norm is None:
            wrapped += ", if all vectors agree"
        return (
            ("mechanism", f"{given.mechanism}, accountant {self.accountant}"),
            ("grounds", self._calibrated.grounds),
            ("steps", f"{request.steps}"),
            ("participations", f"{request.sums_of_one_client} of one client"),
            ("spare sessions", f"{request.spare}"),
            ("modulus", f"{given.modulus} ({given.bits} bits)"),
            ("scale factor", f"{given.scale_factor:.6g} steps per unit"),
            (
                "noise that counts",
                (
                    f"variance {float(self.noise_variance):.6g} steps², "
                    f"{self.noise_overhead:.4f} of the central Gaussian's"
                ),
            ),
            self._shares(),
            ("largest coordinate", f"{float(self.linf_bound):.6g} steps"),
            ("expected error", root_text(forecast.expected_mse)),
            *self._count_error(),
            *self._selected(),
            ("central Gaussian", root_text(self.gaussian_mse)),
            ("ratio of squares", f"{ratio:.4f}"),
            ("wrapped entries", wrapped),
            ("epsilon, server", text_above(self.epsilon_server, 6)),
            ("epsilon, model reader", text_above(self.epsilon_model_reader, 6)),
            ("delta", f"{request.delta:.6g}"),
            ("accountants tried", self._tried()),
            ("upload", f"{self.upload_bytes:,} bytes per client and step"),
        )

    def _tried(self) -> str:
        """Return the accountants that were asked, with their figures."""
        return ", ".join(
            f"{each.name} ε {text_above(each.epsilon, 6)} ({each.cpu_seconds:.2g} s)"
            for each in self.accountants_tried
        )

    def _selected(self) -> tuple[tuple[str, str], ...]:
        """Return lines about secret selection; none without one."""
        rate = self.request.selection
        if rate == 1:
            return ()
        noise = self.estimate_mse - self.selection_mse
        return (
            ("selection rate", f"{rate} of the vectors, selected in secret"),
            (
                "error of the estimate",
                (
                    f"{root_text(self.estimate_mse)}: {_spread(noise)} by noise and "
                    f"{_spread(self.selection_mse)} by secret selection"
                ),
            ),
        )

    def _count_error(self) -> tuple[tuple[str, str], ...]:
        """Return the row of the error of one count, if there is one."""
        if self.count_standard_error is None:
            return ()
        stated = error_text(self.count_standard_error)
        return (("standard error of one count", f"± {stated}"),)

    def _shares(self) -> tuple[str, str]:
        """Return whose noise it is, and how much one share has."""
        given = self.parameters
        text = f"variance {self.share_at_largest:.6g} steps²"
        if self.request.is_central:
            return "the trusted party's noise", text
        if given.noise_rule.min_survivors < given.num_clients:
            text += (
                f" among {given.num_clients} clients, {self.share_at_smallest:.6g} "
                f"among {given.noise_rule.min_survivors}"
            )
        return "one client's share", text

    @property
    def _calibrated(self) -> PrivacyStatement:
        return self.statement_server or self.statement_model_reader

    def to_dict(self) -> dict[str, object]:
        """Return the plan as JSON values.

        An infinite ε becomes the string "inf", since JSON has no infinity. The exact
        variance that counts is in `parameters`.
        """
        request, given, forecast = self.request, self.parameters, self.forecast
        calibrated = self._calibrated
        return {
            "mechanism": given.mechanism,
            "clients": request.clients,
            "dimension": request.dimension,
            "encoded_dimension": make_mechanism(given).encoded_dim,
            "l2_clip": given.l2_clip,
            "epsilon": request.epsilon,
            "delta": request.delta,
            "steps": request.steps,
            "participations": request.sums_of_one_client,
            "spare": request.spare,
            "privacy_unit": self.privacy_unit,
            "sampling_rate": request.sampling_rate,
            "selection_rate": str(request.selection),
            "min_survivors": given.noise_rule.min_survivors,
            "loss_fraction": str(given.noise_rule.loss_fraction),
            "colluders": given.noise_rule.colluders,
            "colluder_fraction": str(given.noise_rule.colluder_fraction),
            "ladder": given.noise_rule.ladder,
            "noise_shares_counted": request.counted_shares,
            "bits": given.bits,
            "modulus": given.modulus,
            "scale_factor": given.scale_factor,
            "rotation": given.rotation,
            "noise_variance": float(self.noise_variance),
            "local_noise_variance": self.share_at_largest,
            "linf_bound": rational_text(self.linf_bound),
            "share_at_smallest": self.share_at_smallest,
            "share_at_largest": self.share_at_largest,
            "noise_overhead": self.noise_overhead,
            "expected_mse": forecast.expected_mse,
            "estimate_mse": self.estimate_mse,
            "selection_mse": self.selection_mse,
            "standard_error": self.standard_error,
            "count_standard_error": self.count_standard_error,
            "expected_mse_counted": self.counted_mse,
            "noise_mse": forecast.noise_mse,
            "most_noise_mse": self.most_noise_mse,
            "rounding_mse": forecast.rounding_mse,
            "bias_mse": forecast.bias_mse,
            "wrap_mse": forecast.wrap_mse,
            "gaussian_mse": self.gaussian_mse,
            "wrap_probability": forecast.wrap_probability,
            "expected_wrapped_coordinates": forecast.expected_wrapped_coordinates,
            "accountant": self.accountant,
            "accountants_tried": [
                {
                    "name": each.name,
                    "epsilon": _json_number(each.epsilon),
                    "cpu_seconds": each.cpu_seconds,
                }
                for each in self.accountants_tried
            ],
            "status": calibrated.status.value,
            "proof": calibrated.proof.value,
            "calibrated_for": request.calibrated_for.value,
            "adjacency": request.adjacency.value,
            "epsilon_server": _json_number(self.epsilon_server),
            "epsilon_model_reader": _json_number(self.epsilon_model_reader),
            "assumptions": [*calibrated.assumptions, _PSEUDORANDOM],
            "upload_bytes": self.upload_bytes,
            "in_words": self.in_words,
            "notes": list(self.notes),
            "parameters": given.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The forecast at one bit width, for tables and pictures.

    Args:
        bits: Bits per coordinate.
        scale_factor: Scale with the least error at these bits, grid steps per unit.
        expected_mse: Forecast error of the sum per coordinate, caller's units².
        wrap_probability: Probability that one coordinate wraps.
        upload_bytes: Bytes of one client's packed vector.
    """

    bits: int
    scale_factor: float
    expected_mse: float
    wrap_probability: float
    upload_bytes: int


def error_curve(made: Plan, *, bits: range = range(2, 25)) -> tuple[CurvePoint, ...]:
    """Forecast the least error at other bit widths, without new calibrations.

    Args:
        made: The plan to vary; its noise fixes the model.
        bits: Bit widths to forecast.

    Returns:
        One point per bit width that can hold the sum, errors never growing with the
        bits.
    """
    request = made.request
    model = NoiseModel.of(
        request, gaussian_variance_per_sensitivity(request), fit=made.noise_fit
    )
    length = make_mechanism(made.parameters).encoded_dim
    points = []
    for width in bits:
        scale = best_scale(model, width)
        if scale is None:
            continue
        points.append(
            CurvePoint(
                bits=width,
                scale_factor=scale.scale_factor,
                expected_mse=scale.forecast.expected_mse,
                wrap_probability=scale.forecast.wrap_probability,
                upload_bytes=packed_bytes(length, width),
            )
        )
    return tuple(points)


def root_text(mean_square: float) -> str:
    """Return a mean squared error as people read it: its root, rounded up.

    Args:
        mean_square: Caller's units squared, at least 0.
    """
    return f"{_spread(mean_square)} per entry"


def _spread(mean_square: float) -> str:
    return f"± {error_text(sqrt_above(Fraction(mean_square)))}"


def packed_bytes(length: int, bits: int) -> int:
    """Return the bytes of a packed vector: ⌈length · bits / 8⌉."""
    return -(-length * bits // 8)


def _percent(part: Fraction) -> str:
    """Return a part in per cent."""
    return f"{100.0 * float(part):.4g} %"


def _json_number(number: float) -> float | str:
    """Return a number as JSON has it; infinity is a text."""
    return number if math.isfinite(number) else "inf"
