"""Maximal causes analysis with Gaussian noise (ET sec. 4.2)."""

import numpy as np

from parallel_et.models.base import Knob
from parallel_et.models.maximal import MaximalModel


class MCA(MaximalModel):
    """Non-negative fields of which the largest active one sets each pixel: y_d = max_h s_h W_dh + noise.

    The softness of the maximum in the M-step follows the temperature: rho = T / (T - 1).
    """

    knobs = {
        "rho": Knob(
            lambda temperature: temperature / (temperature - 1) if temperature > 1 else np.inf,
            least=1.0,
            does="sharpness of the maximum in the M-step; by default T / (T - 1), which is infinite at T = 1 and below",
        )
    }


MODEL = MCA
