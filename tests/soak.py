"""Kills a run many times, goes on with it on other numbers of ranks, and compares its end with that of a whole run.

python tests/soak.py [--iterations 300] [--kills 25] [--seed N]
"""

import argparse
import os
import random
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from launch import ended, hooked, learned, ranks_of, start, train

JOB = """
[model]
name = "linca"
causes = 60
learn = ["W", "sigma", "pi"]
[data]
source = "data.npy"
[inference]
candidates = 6
gamma = 3
[anneal]
iterations = {iterations}
temperature = [[0.1, 5.0], [0.8, 1.0]]
cut = {{ schedule = [[0.3, 0.0], [0.6, 1.0]], share = 0.9 }}
noise.W = 0.05
[run]
snapshots = 100
checkpoint = {{ every = 3 }}
"""
PATIENCE = 120.0
HOLD = """
import time
from parallel_et.keeper import Keeper
after = Keeper._after
def holding(keeper):
    while keeper.training.at.iteration >= {at}:
        time.sleep(1)
    return after(keeper)
Keeper._after = holding
"""


def prepare(place: Path, iterations: int) -> dict[str, bytes]:
    """Data, job and the outcome of a run that nothing disturbs."""
    np.save(place / "data.npy", np.random.default_rng(1).normal(size=(6000, 144)))
    (place / "job.toml").write_text(JOB.format(iterations=iterations))
    done = train(2, "job.toml", "--output", "runs/whole", cwd=place)
    assert done.returncode == 0, done.stderr
    return learned(place / "runs/whole/result.h5")


def newest(place: Path) -> int:
    """Iterations that the newest checkpoint has."""
    return max((int(path.stem) for path in place.glob("runs/job/checkpoints/*.h5")), default=0)


def parts(place: Path) -> set[tuple[Path, int]]:
    """Checkpoints that are half written."""
    found = set()
    for path in place.glob("runs/job/checkpoints/*.part"):
        with suppress(FileNotFoundError):  # it is whole by now
            found.add((path, path.stat().st_ino))
    return found


def soak(place: Path, iterations: int, kills: int, seed: int) -> bool:
    """Run it all and print a line a kill; returns whether the end is the same, bit for bit."""
    rng = random.Random(seed)
    whole = prepare(place, iterations)
    targets = sorted(rng.randrange(iterations * 4 // 5) for _ in range(kills))
    hold = hooked(place, HOLD.format(at=iterations * 19 // 20))  # it does not come to its end before it is killed
    print(f"seed {seed}: {kills} kills of a run of {iterations} iterations, a checkpoint every 3")
    print("kill  ranks  killed  checkpoint  moment")
    for kill, target in enumerate(targets, 1):
        ranks = rng.randint(1, 4)
        victim = rng.randrange(ranks)
        left = parts(place)
        process = start(ranks, "job.toml", cwd=place, **hold)
        deadline = time.monotonic() + PATIENCE
        while newest(place) < target and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        while len(pids := ranks_of(place)) < ranks and process.poll() is None:
            time.sleep(0.005)
        if rng.random() < 0.4:  # while the root writes a checkpoint
            victim = 0
            while not parts(place) - left and newest(place) < target + iterations // 10 and process.poll() is None:
                pass
        else:
            time.sleep(rng.random() * 0.3)
        os.kill(pids[victim], signal.SIGKILL)
        _, code, said = ended(process, place)
        assert code not in (0, 2, 75), f"expected a killed run, found exit code {code}\n{said}"
        moment = "within the writing of a checkpoint" if parts(place) - left else "elsewhere"
        print(f"{kill:4d}  {ranks:5d}  {victim:6d}  {newest(place):10d}  {moment}", flush=True)
    ranks = rng.randint(1, 4)
    done = train(ranks, "job.toml", cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    found = learned(place / "runs/job/result.h5")
    different = [name for name in whole if found.get(name) != whole[name]]
    print(f"the end, on {ranks} ranks: {'different in ' + ', '.join(different) if different else 'the same bits'}")
    return set(found) == set(whole) and not different


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    args = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="soak-")).resolve()
    try:
        good = soak(place, args.iterations, args.kills, args.seed)
    finally:
        shutil.rmtree(place)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
