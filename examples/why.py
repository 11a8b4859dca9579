"""Compare NMF, dictionary learning and MCA on noisy bars that hide each other, and draw the learned fields.

``python examples/why.py --draws 5`` counts over five data sets. The picture, why.png, shows the first.
"""

import argparse
import warnings

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import linear_sum_assignment
from sklearn.decomposition import NMF, DictionaryLearning

from parallel_et import fit

GRID, WIDTH, POINTS, SIGMA, PI = 6, 2, 1500, 3.0, 0.25
ROWS = np.arange(GRID)[:, None] - np.arange(GRID - WIDTH + 1)
ROWS = 10.0 * ((ROWS >= 0) & (ROWS < WIDTH)).T  # of each horizontal bar
BARS = np.concatenate([np.repeat(ROWS, GRID, 1), np.tile(ROWS, (1, GRID))])
H, FIRST = len(BARS), 101


def draw(seed):
    """Draw the bars of each point, and the points: a pixel of two bars is as bright as a pixel of one."""
    rng = np.random.default_rng(seed)
    present = rng.random((POINTS, H)) < PI
    clean = (present[:, :, None] * BARS).max(1)
    return present, clean + rng.normal(0, SIGMA, clean.shape)


def by_nmf(Y, seed):
    """Fit NMF of scikit-learn, with negative values set to zero."""
    learned = NMF(H, init="nndsvda", max_iter=2000, random_state=seed)
    return learned.fit_transform(np.maximum(Y, 0)), learned.components_, ""


def by_dictionary(Y, seed):
    """Fit dictionary learning of scikit-learn, with non-negative fields and weights like those of the data."""
    options = {"fit_algorithm": "cd", "transform_algorithm": "lasso_cd", "positive_code": True, "positive_dict": True}
    learned = DictionaryLearning(H, alpha=5.0, max_iter=200, random_state=seed, **options)
    return learned.fit_transform(Y), learned.components_, ""


def by_mca(Y, seed):
    """Fit maximal causes, which also learn the noise and the probability of a bar."""
    job = {
        "model": {"name": "mca", "causes": H, "init": {"W": {"moments": "third"}}},
        "inference": {"candidates": 6, "gamma": 4, "singletons": True},
        "anneal": {"iterations": 60, "renew": 12},
        "run": {"seed": seed},
    }
    learned = fit(job, data=Y)
    numbers = f"noise {float(learned.params['sigma']):.2f}, bars with probability {float(learned.params['pi']):.3f}"
    return learned.transform(Y), learned.W.T, numbers


METHODS = {"scikit-learn NMF": by_nmf, "scikit-learn DictionaryLearning": by_dictionary, "parallel_et mca": by_mca}


def matched(fields):
    """Return the index of the field for each bar, and whether their cosine is above 0.95."""
    lengths = np.linalg.norm(fields, axis=1, keepdims=True)
    cosines = (BARS / np.linalg.norm(BARS, axis=1, keepdims=True)) @ (fields / np.where(lengths > 0, lengths, 1)).T
    _, order = linear_sum_assignment(-cosines)
    return order, cosines[np.arange(H), order] > 0.95


def error_rate(codes, present, method):
    """Return the fraction of wrong decisions about bars in points, by a probability of 1/2 or the best threshold."""
    scaled = codes / np.maximum(codes.max(0), 1e-300)
    tries = [0.5] if method is by_mca else np.linspace(0, 1, 101)  # the best is chosen by the truth
    return min(((scaled > threshold) != present).mean() for threshold in tries)


def main():
    """Count the bars that each method finds, and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1, help="number of data sets")
    parser.add_argument("--output", default="why.png", help="the picture")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # dictionary learning does not converge within its iterations
    figure = Figure(figsize=(8, 4.2))
    figure.subplots_adjust(0.01, 0.01, 0.99, 0.94, 0.1, 0.35)
    axes = figure.subplots(4, H)
    counts, errors = ({name: [] for name in METHODS} for _ in range(2))
    for number in range(args.draws):
        present, Y = draw(FIRST + number)
        rows = [
            (f"data: {GRID} x {GRID} pixels, bars of width {WIDTH}, noise {SIGMA}, bars with probability {PI}", Y, [])
        ]
        for name, method in METHODS.items():
            codes, fields, numbers = method(Y, FIRST + number)
            order, good = matched(fields)
            counts[name].append(int(good.sum()))
            errors[name].append(error_rate(codes[:, order], present, method))
            title = f"{name}: {good.sum()} of {H} bars, {errors[name][-1]:.1%} of their states wrong"
            rows.append((f"{title}; {numbers}" if numbers else title, fields[order], good))
        for cells, (title, images, good) in zip(axes, rows if number == 0 else [], strict=number == 0):
            for cell, image in zip(cells, images, strict=False):
                cell.imshow(image.reshape(GRID, GRID), cmap="gray")
                cell.set(xticks=[], yticks=[])
            for cell, like in zip(cells, good, strict=False):
                cell.spines[:].set(color="tab:green" if like else "tab:red", linewidth=2.5)
            cells[0].set_title(title, loc="left", fontsize=9).set_in_layout(False)
    for name in METHODS:
        found, complete = np.mean(counts[name]), counts[name].count(H)
        print(
            f"{name}: {found:.1f} of {H} bars found, all bars in {complete} of {args.draws} data sets, "
            f"{np.mean(errors[name]):.1%} of their states wrong"
        )
    figure.savefig(args.output, dpi=80)


if __name__ == "__main__":
    main()
