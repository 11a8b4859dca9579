"""Damage to files, accidental and hostile."""

import numpy as np

ODD = np.array([0, 1, 2, 127, 128, 254, 255], np.uint8)


def spoil(rng: np.random.Generator, raw: bytes, head: int = 400) -> bytes:
    """Change bits and bytes, mostly among the first ``head``; delete, repeat, clear or reverse pieces; cut the end."""
    data = bytearray(raw)
    head = head if rng.random() < 0.7 else len(data)
    for _ in range(rng.integers(1, 6)):
        if not data:
            break
        index, kind = int(rng.integers(min(len(data), head))), rng.random()
        if kind < 0.45:
            data[index] ^= 1 << int(rng.integers(8))
        elif kind < 0.7:
            data[index] = int(rng.choice(ODD))
        elif kind < 0.8:
            data[index] = int(rng.integers(256))
        elif kind < 0.9:  # a number of 4 or 8 bytes
            size = int(rng.choice([4, 8]))
            number = int(rng.choice([0, 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1])) % 256**size
            data[index : index + size] = number.to_bytes(size, str(rng.choice(["little", "big"])))
        else:
            end = index + int(rng.integers(1, 64))
            piece = bytes(data[index:end])
            data[index:end] = [b"", piece + piece, bytes(len(piece)), piece[::-1]][int(rng.integers(4))]
    if rng.random() < 0.1:
        del data[int(rng.integers(len(data) + 1)) :]
    return bytes(data)
