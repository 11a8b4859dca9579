"""The job of these tests, and the files in its run directory."""

JOB = """
[model]
name = "linca"
causes = 8
learn = ["W", "sigma", "pi"]
[data]
source = "data.npy"
holdout = 0.1
[inference]
candidates = 5
gamma = 3
[anneal]
iterations = 300
temperature = [[0.1, 5.0], [0.8, 1.0]]
cut = { schedule = [[0.3, 0.0], [0.6, 1.0]], share = 0.9 }
noise.W = 0.05
[run]
snapshots = 50
checkpoint = { every = 100, keep = 3 }
"""
ENDLESS = ("--set", "anneal.iterations=1000000", "--set", "anneal.temperature=2.0", "--set", "run.snapshots=0")


def checkpoints(place):
    return sorted(path.name for path in (place / "runs/job/checkpoints").glob("*.h5"))


def number(place):
    return max((int(name[:6]) for name in checkpoints(place)), default=0)
