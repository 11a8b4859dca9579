"""Random numbers from a counter: what is drawn depends on the seed, the purpose and the index, never on who draws."""

from hashlib import blake2b

import numpy as np


def stream(seed: int, purpose: str, index: int = 0) -> np.random.Generator:
    """The generator for one ``purpose`` ("noise.W", "data", …) and one ``index`` (an iteration, a group of points)."""
    word = int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest(), "little")
    return np.random.Generator(np.random.Philox(key=[seed, word], counter=[0, 0, index, 0]))
