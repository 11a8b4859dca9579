"""A look at a run with nothing but h5py, numpy and matplotlib: ``python look.py runs/demo``.

Or cell by cell in an editor that knows ``# %%``. The pictures are written beside: look-fields.png, look-course.png.
"""

# %% the run
import sys
from pathlib import Path

import h5py
import matplotlib.pyplot as plt
import numpy as np

run = Path(sys.argv[1] if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "runs/demo")
pictures = Path(sys.argv[2] if len(sys.argv) > 2 else ".")
with h5py.File(run / "result.h5") as file:
    W = file["params/W"][()]  # (D, H)
    history = {name: values[()] for name, values in file["history"].items()}
    about = dict(file.attrs)
print(f"{about['name']}: N={about['N']} D={W.shape[0]} H={W.shape[1]}, {about['start']} to {about['end']}")
print(about["job"])  # the job file with all its defaults

# %% the fields, as images if they are square, else as curves, the strongest first
W = W[:, np.argsort(-np.linalg.norm(W, axis=0))]
side = round(np.sqrt(len(W)))
top = np.quantile(np.abs(W), 0.995)  # a single odd field does not hide the others
low = -top if W.min() < 0 else 0.0
columns = min(10, W.shape[1])
rows = -(-W.shape[1] // columns)
figure, axes = plt.subplots(rows, columns, figsize=(columns, rows + 0.3), squeeze=False, layout="constrained")
for axis in axes.flat:
    axis.set_axis_off()
for axis, field in zip(axes.flat, W.T, strict=False):
    if side * side == len(W):
        axis.imshow(field.reshape(side, side), "RdBu_r" if low < 0 else "gray_r", vmin=low, vmax=top)
    else:
        axis.plot(field, "k", linewidth=0.7)
        axis.set_ylim(low, top)
figure.suptitle(f"{about['name']}: fields from {low:.3g} to {top:.3g}", fontsize=9)
figure.savefig(pictures / "look-fields.png", dpi=120)

# %% the course of the run
names = ["free_energy", "temperature", "sigma", "pi", "points_used"]
figure, axes = plt.subplots(len(names), 1, figsize=(7, 8), sharex=True, layout="constrained")
for axis, name in zip(axes, names, strict=True):
    axis.plot(history[name])
    axis.set_ylabel(name)
axes[-1].set_xlabel("iteration")
figure.savefig(pictures / "look-course.png", dpi=120)

# %% where the time went
seconds = {name.removeprefix("seconds_"): v.sum() for name, v in history.items() if name.startswith("seconds_")}
for phase, spent in sorted(seconds.items(), key=lambda item: -item[1]):
    print(f"{phase:15} {spent:8.2f} s")
plt.show()
