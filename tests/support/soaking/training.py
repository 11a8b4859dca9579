"""A training run that is disturbed, resumed on another number of ranks, and compared with an undisturbed run."""

import random
import re
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
from damage import spoil
from launch import learned
from soaking.cases import Case, write_case
from soaking.commanded import ASKS, EXIT_STOPPED, KILLS, OPEN_MPI, Commanded, Start, Way, stopped_a_while
from soaking.tally import COMPARED, Tally

RUN = Path("runs/job")
FOREVER = 1 << 30


def touch_stop(run: Commanded) -> None:
    """Ask for a stop by the file ``stop``."""
    (run.place / RUN).mkdir(parents=True, exist_ok=True)
    (run.place / RUN / "stop").touch()


START, AMID, CHECKPOINT, RESULT = "at the start", "amid iterations", "amid a checkpoint", "amid the result"
MAX_TIME, FULL_DISK, DAMAGED = "--max-time", "full disk", "newest checkpoint damaged"
WAYS: dict[str, tuple[Way, str]] = {
    **{
        f"{name} {moment}": (way, moment) for name, way in KILLS.items() for moment in (START, AMID, CHECKPOINT, RESULT)
    },
    **{
        f"{name} {moment}": (way, moment)
        for name, way in {**ASKS, "file stop": Way(touch_stop, True)}.items()
        for moment in (START, AMID)
    },
    "SIGUSR1 after SIGSTOP and SIGCONT": (Way(stopped_a_while, True), AMID),
}
KINDS = [*WAYS, MAX_TIME, FULL_DISK, DAMAGED]
"""All kinds of disturbances of a training."""


def mount(place: Path) -> bool:
    """Try to mount a small disk; return whether this succeeded."""
    return not subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64M", "none", place], capture_output=True).returncode


def can_mount() -> bool:
    """Return whether disks can be mounted here."""
    with tempfile.TemporaryDirectory(prefix="soak-") as place:
        return mount(Path(place)) and not subprocess.run(["umount", "-l", place]).returncode


class Training(Commanded):
    """A training run in its own folder."""

    def __init__(self, case: Case, tally: Tally, rng: random.Random, start: Start) -> None:
        super().__init__("train", tally, rng, start)
        self.case = case
        self.ranks = 0
        self.disk = False
        write_case(case, self.place)
        self.whole = self.place / "whole/result.h5"

    def __str__(self) -> str:
        return f"{self.case.name}; on {self.ranks} ranks"

    def __exit__(self, *error: object) -> None:
        if self.disk:
            subprocess.run(["umount", "-l", self.place / "runs"], check=True)
        super().__exit__(*error)

    def prepare(self) -> bool:
        """Train without disturbance; return whether this succeeded."""
        self.kind = COMPARED
        self.ranks = self.rng.randint(1, 2)
        self.begin(self.ranks, "job.toml", "--output", "whole", "--quiet")
        if code := self.end():
            self.lose(f"expected exit code 0 of a run that nothing disturbs, found {code}")
            return False
        with h5py.File(self.whole) as file:
            self.history = {name: item[()] for name, item in file["history"].items()}
        self.last = len(self.history["temperature"])
        return True

    def run(self, kinds: list[str]) -> list[str]:
        """Disturb the run in these ways and compare its result; return the kinds for which the run was too short."""
        if FULL_DISK in kinds:
            (self.place / "runs").mkdir()
            self.disk = mount(self.place / "runs")
        kinds.sort(key=lambda kind: (kind.endswith(RESULT), kind == DAMAGED and not self.rng.randint(0, 2)))
        for place, kind in enumerate(kinds):
            amid = sum(not kind.endswith(RESULT) for kind in kinds[place:])
            if not self.disturb(kind, max(2, (self.last - self.newest()) // (amid + 1))):
                self.tally.late += 1
                self.compare()
                return kinds[place:]
        self.finish()
        return []

    def disturb(self, kind: str, gap: int) -> bool:
        """Resume the run and disturb it within ``gap`` iterations; return whether it was still running."""
        begun, self.kind, before = time.monotonic(), kind, self.newest()
        if kind == DAMAGED and len(self.checkpoints()) < 2:
            kind = "one rank killed amid iterations"
            self.kind = kind
        damaged = self.damage() if kind == DAMAGED else None
        way, moment = WAYS.get(kind, (ASKS["SIGUSR1 to one rank"], AMID))
        target = self.newest() + self.rng.randint(1, max(1, gap // 2))
        self.mark("hold", FOREVER if moment == RESULT else target + 1)
        (self.place / "slow").write_text("result" if moment == RESULT else "")
        options = ("--max-time", f"{0.5 + 2 * self.rng.random():.2f} s") if kind == MAX_TIME else ()
        parts = self.parts()
        self.launch(*options)
        if kind == MAX_TIME:
            codes = (EXIT_STOPPED,)
        elif not self.find_ranks(self.ranks):
            code = self.end()
            if code:
                self.lose(f"expected {self.ranks} ranks, found them gone with exit code {code}")
            return False
        elif kind == FULL_DISK:
            codes = self.fill(target)
        else:
            self.wait(moment, way, target, parts)
            way.act(self)
            codes = (EXIT_STOPPED,) if way.asks else ()
        code = self.end()
        if code == 0:
            return False
        self.tally.add(kind)
        self.tally.note(kind, time.monotonic() - begun, f"exit code {code}, iteration {self.newest()} [{self}]")
        self.judge(code, codes, before, damaged)
        return True

    def launch(self, *options: str) -> None:
        """Start the run on another number of ranks, with one or two threads."""
        least = (
            2 if OPEN_MPI and self.kind.startswith("mpirun killed") else 1
        )  # a single rank would continue to the end
        self.ranks = self.other_ranks(self.ranks, least)
        self.begin(self.ranks, "job.toml", "--set", f"run.threads={self.rng.randint(1, 2)}", *options)

    def wait(self, moment: str, way: Way, target: int, before: set[tuple[Path, int]]) -> None:
        """Wait for the moment of a disturbance."""
        if way.asks:
            self.listening()
        if moment == START:
            self.rest(1.5 * self.rng.random())
        elif moment == AMID:
            self.until(lambda: self.newest() >= target)
            self.rest(0.15 * self.rng.random())
        elif moment == CHECKPOINT:
            self.until(lambda: self.newest() >= target)
            (self.place / "slow").write_text("checkpoints rows")
            self.until(lambda: [path for path, _ in self.parts() - before if "checkpoints" in path.parts], 0.001)
            self.rest(0.1 * self.rng.random())
        else:
            self.until(lambda: [path for path, _ in self.parts() - before if path.parent.name == "job"], 0.001)
            self.rest(0.1 * self.rng.random())

    def judge(self, code: int, codes: tuple[int, ...], before: int, damaged: str | None) -> None:
        """Check exit code, messages and bits of a disturbed run."""
        newest, said = self.newest(), self.said
        asked = EXIT_STOPPED in codes
        if OPEN_MPI and asked:  # mpirun of Open MPI kills its ranks after half a second
            codes = (*codes, 1) if self.kind.startswith(("Ctrl-C", "SIGTERM to mpirun")) else codes
        if (asked and code not in codes) or (not asked and code in (0, 2, EXIT_STOPPED)):
            self.lose(f"expected {f'exit code {codes}' if asked else 'a killed run'}, found exit code {code}")
        if newest < before and damaged is None:
            self.lose(f"expected the checkpoint of iteration {before}, found that of {newest}")
        begun = re.search(r"resumes from \S+, after (\d+) iterations", said)
        if begun and damaged is None and int(begun[1]) != before:
            self.lose(f"expected to go on from iteration {before}, found {begun[1]}")
        if damaged is not None and damaged not in said:
            self.lose(f"expected a warning of {damaged}, found none")
        if "starts from the beginning" in said and before:
            self.lose(f"expected to go on from iteration {before}, found a start from the beginning")
        stop = re.search(r"stopped by .* after (\d+) iterations; the same command resumes\n", said)
        if stop and int(stop[1]) != newest:
            self.lose(f"expected the checkpoint of iteration {stop[1]}, found that of {newest}")
        self.check_history()

    def check_history(self) -> None:
        """Compare the iterations of the newest checkpoint with those of the undisturbed run."""
        if not (paths := self.checkpoints()):
            return
        try:
            with h5py.File(paths[-1]) as file:
                history = {name: item[()] for name, item in file["history"].items() if "seconds" not in name}
        except (OSError, KeyError) as error:
            return self.lose(f"{paths[-1].name}: expected a checkpoint that can be read, found {error}")
        expected = {name: values for name, values in self.history.items() if "seconds" not in name}
        self.wrong(
            name
            for name in {**expected, **history}
            if name not in history
            or name not in expected
            or history[name].tobytes() != expected[name][: len(history[name])].tobytes()
        )

    def wrong(self, names) -> None:
        """Report values with other bits."""
        if found := sorted(names):
            self.tally.complain(self.tally.wrong, self.kind, f"other bits in {', '.join(found)} [{self}]")

    def finish(self) -> None:
        """Resume the run to its end, and compare its result with the undisturbed run."""
        self.kind = COMPARED
        self.mark("hold", FOREVER)
        (self.place / "slow").write_text("")
        self.launch()
        if code := self.end():
            return self.lose(f"expected exit code 0, found {code}")
        self.compare()

    def compare(self) -> None:
        """Compare a finished run with the undisturbed run."""
        self.kind = COMPARED
        self.tally.add(self.kind)
        if not (self.place / RUN / "result.h5").exists():
            return self.lose("expected a result, found none")
        found, whole = learned(self.place / RUN / "result.h5"), learned(self.whole)
        self.wrong(name for name in {**whole, **found} if found.get(name) != whole.get(name))

    def damage(self) -> str:
        """Damage the newest checkpoint or its point states; return the name of the checkpoint."""
        newest = self.checkpoints()[-1]
        point_states = newest.with_name(f"{newest.stem}.points.h5")
        path = point_states if point_states.exists() and self.rng.random() < 0.5 else newest
        raw, rng = path.read_bytes(), np.random.default_rng(self.rng.randrange(1 << 32))
        while (spoilt := spoil(rng, raw)) == raw:
            pass
        path.write_bytes(spoilt)
        return newest.name

    def fill(self, target: int) -> tuple[int, ...]:
        """Fill the disk, wait for the warning, and end the run, with the disk full or freed."""
        self.until(lambda: self.newest() >= target)
        filler = self.place / "runs/filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        self.until(lambda: "No space left" in self.said)
        full = self.rng.random() < 0.5
        if not full:
            filler.unlink()
            newest = self.newest()
            self.until(lambda: self.newest() > newest)
        way = self.rng.choice([*KILLS.values(), ASKS["SIGUSR1 to one rank"]])
        way.act(self)
        self.until(lambda: False)
        filler.unlink(missing_ok=True)
        return ((EXIT_STOPPED, 1) if full else (EXIT_STOPPED,)) if way.asks else ()

    def mark(self, name: str, value: int) -> None:
        """Write a switch of the hook atomically."""
        part = self.place / f"{name}.part"
        part.write_text(str(value))
        part.rename(self.place / name)

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints, the newest last."""
        return sorted(path for path in (self.place / RUN / "checkpoints").glob("*.h5") if path.stem.isdigit())

    def newest(self) -> int:
        """Return the number of iterations of the newest checkpoint."""
        return max((int(path.stem) for path in self.checkpoints()), default=0)

    def parts(self) -> set[tuple[Path, int]]:
        """Return the partial files of checkpoints and result, with their inodes."""
        found = set()
        for path in [*(self.place / RUN).glob("checkpoints/*.part"), self.place / RUN / "result.h5.part"]:
            with suppress(FileNotFoundError):
                found.add((path, path.stat().st_ino))
        return found
