"""Learn the blades and stems of grass from image patches by maximal causes: the brightest hides the others.

``python grass.py`` takes one to two minutes and needs an image of scikit-image: ``pip install scikit-image``.
``mpirun -n 4 python -m mpi4py grass.py --points 40000 --causes 100`` is closer to the paper (ET sec. 4.2.2).
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

from parallel_et import fit
from parallel_et.preprocessing.datasets import write_grass
from parallel_et.reports.pictures import draw_fields

parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
parser.add_argument("--points", type=int, default=10000, help="patches of 10 x 10 pixels")
parser.add_argument("--causes", type=int, default=50)
parser.add_argument("--iterations", type=int, default=150)
parser.add_argument("--output", default="grass", help="folder for the patches and the run")
args = parser.parse_args()

data = write_grass(args.output, count=args.points)
job = {
    "model": {
        "name": "mca",
        "causes": args.causes,
        "sigma": 1.0,
        "pi": 2 / args.causes,
        "init": {"W": {"mean": 2.3, "std": 0.77}},
    },
    "data": {"source": f"{data}:/patches"},
    "inference": {"candidates": 5, "gamma": 3, "singletons": True},
    "anneal": {
        "iterations": args.iterations,
        "temperature": [[0.1, 4.0], [0.8, 1.05]],
        "cut": {"schedule": [[0.8, 0.0], [0.9, 1.0]], "share": 0.9},
        "noise": {"W": 0.01},
    },
    "run": {"snapshots": max(1, args.iterations // 10)},
}


def show(params, settings, info):
    """Print one line every tenth iteration. Only the root calls this function."""
    if settings.iteration % 10 == 0:
        print(
            f"iteration {settings.iteration}: T {settings.temperature:.2f}, free energy {info.free_energy:.1f}",
            flush=True,
        )


run = f"{args.output}/run"
result = fit(job, output=run, watch=show)
if result.history:  # only the root has it
    draw_fields(result.W, (10, 10), Path(args.output, "fields.png"), f"{args.causes} fields of grass")
    print(f"fields: {args.output}/fields.png; more of them: python -m parallel_et report {run}")
