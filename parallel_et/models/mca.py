"""Maximal causes analysis (MCA): the largest active field sets the mean of each value.

    p(s) = prod_h pi^s_h (1 - pi)^(1 - s_h),    m_d(s) = max_h s_h W_dh,    W >= 0
    p(y | s) = Gauss(y; m(s), sigma^2 I)  or  prod_d Poisson(y_d; m_d(s))

The model suits patterns that hide each other instead of adding up: objects in images, sources in log-spectrograms.
See ET sec. 4.2 for Gaussian and the MCA paper for Poisson noise.
"""

from parallel_et.core.types import OwnSchedule
from parallel_et.kernels.responsibilities import HARD_RHO
from parallel_et.models.components.initial_fields import FIRST_JOB_WITH_MOMENTS
from parallel_et.models.components.maximal import MaximalModel


class MCA(MaximalModel):
    """Non-negative fields; the largest active one sets the mean of each value, max_h s_h W_dh.

    The M-step uses a soft maximum whose sharpness follows the temperature: rho = T / (T - 1).
    """

    first_job = {**MaximalModel.first_job, **FIRST_JOB_WITH_MOMENTS}
    schedules = {
        "rho": OwnSchedule(
            lambda temperature: min(HARD_RHO, temperature / (temperature - 1)) if temperature > 1 else HARD_RHO,
            low=1.0,
            description="sharpness of the maximum in the M-step, by default T / (T - 1); the maximum is hard at T <= 1 "
            f"and for values of {HARD_RHO:g} or more",
        )
    }


MODEL = MCA
