"""The bars test in ten lines, on one or several ranks: ``python bars.py``, ``mpirun -n 4 python -m mpi4py bars.py``."""

from parallel_et import fit

job = {
    "model": {"name": "mca", "causes": 10, "sigma": 2.0, "pi": 0.2},
    "data": {"source": "bars", "points": 2000, "overlap": "max", "noise": {"sigma": 2.0}},
    "inference": {"candidates": 5, "gamma": 3, "singletons": True},
    "anneal": {"iterations": 100, "temperature": [[0.1, 13.0], [0.8, 1.05]], "noise": {"W": 0.05}},
}
result = fit(job, output="runs/example")
if result.history:  # only the root has it
    print(result.W.T.reshape(10, 5, 5).round().astype(int))
