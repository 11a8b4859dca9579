"""Maximal causes analysis with Gaussian (ET sec. 4.2) or Poisson noise (MCA)."""

from parallel_et.core.types import OwnSchedule
from parallel_et.kernels.responsibilities import HARD
from parallel_et.models.components.initial_fields import FROM_MOMENTS
from parallel_et.models.components.maximal import MaximalModel


class MCA(MaximalModel):
    """Non-negative fields of which the largest active one sets the mean of each pixel, max_h s_h W_dh.

    The softness of the maximum in the M-step follows the temperature: rho = T / (T - 1).
    """

    first_job = {**MaximalModel.first_job, **FROM_MOMENTS}
    schedules = {
        "rho": OwnSchedule(
            lambda temperature: min(HARD, temperature / (temperature - 1)) if temperature > 1 else HARD,
            least=1.0,
            does=f"sharpness of the maximum in the M-step; by default T / (T - 1); from {HARD:g} on, as at T = 1 and "
            "below, the maximum is a hard one",
        )
    }


MODEL = MCA
