"""Plot a run with only h5py, numpy and matplotlib: ``python look.py runs/demo``.

Editors with ``# %%`` cells can run it cell by cell. An unfinished run is shown at its last checkpoint.
The pictures are look-fields.png and look-course.png. ``--shape 200`` draws the fields of sounds as curves.
"""

# %% the run
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import h5py
import matplotlib.pyplot as plt
import numpy as np

parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
parser.add_argument("run", type=Path, nargs="?", default="runs/demo", help="directory of a run")
parser.add_argument(
    "--shape", type=int, nargs="+", help="shape of a point: height and width, or one number for a curve"
)
parser.add_argument("--output", type=Path, default=".", help="folder for the pictures")
args, _ = parser.parse_known_args()  # editors add arguments of their own
files = [*sorted(args.run.glob("checkpoints/*.h5")), *args.run.glob("result.h5")]
if not files:
    raise SystemExit(f"{args.run}: expected the directory of a run, found no result.h5 and no checkpoints")
with h5py.File(files[-1]) as file:
    W = file["params/W"][()]  # (D, H)
    history = {name: values[()] for name, values in file["history"].items()}
    about = dict(file.attrs)
print(f"{about['name']}: N={about['N']} D={W.shape[0]} H={W.shape[1]}, {about['start']} to {about['end']}")
print(about["job"])  # the job file with all its defaults

# %% the fields, the strongest first, as images if --shape has two numbers or if they can be square
W = W[:, np.argsort(-np.linalg.norm(W, axis=0))]
side = round(np.sqrt(len(W)))
shape = args.shape or ([side, side] if side * side == len(W) else [len(W)])
top = np.quantile(np.abs(W), 0.995)  # one outlier does not determine the scale
low = -top if W.min() < 0 else 0.0
columns = min(10, W.shape[1])
rows = -(-W.shape[1] // columns)
figure, axes = plt.subplots(rows, columns, figsize=(columns, rows + 0.3), squeeze=False, layout="constrained")
for axis in axes.flat:
    axis.set_axis_off()
for axis, field in zip(axes.flat, W.T, strict=False):
    if len(shape) == 2:
        axis.imshow(field.reshape(shape), "RdBu_r" if low < 0 else "gray_r", vmin=low, vmax=top)
    else:
        axis.plot(field, "k", linewidth=0.7)
        axis.set_ylim(low, top)
figure.suptitle(f"{about['name']}: fields from {low:.3g} to {top:.3g}", fontsize=9)
figure.savefig(args.output / "look-fields.png", dpi=120)

# %% the course of the run
names = ["free_energy", "temperature", "sigma", "pi", "points_used"]
figure, axes = plt.subplots(len(names), 1, figsize=(7, 8), sharex=True, layout="constrained")
for axis, name in zip(axes, names, strict=True):
    axis.plot(history[name])
    axis.set_ylabel(name)
axes[-1].set_xlabel("iteration")
figure.savefig(args.output / "look-course.png", dpi=120)

# %% seconds of each phase
seconds = {name.removeprefix("seconds_"): v.sum() for name, v in history.items() if name.startswith("seconds_")}
for phase, spent in sorted(seconds.items(), key=lambda item: -item[1]):
    print(f"{phase:15} {spent:8.2f} s")
plt.show()
