"""Trials of several values of a key, and which of them explains best what was not learned from."""

import csv
import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parallel_et.control.progress import Reporter
from parallel_et.core.schema import show
from parallel_et.errors import UserError
from parallel_et.job.job import read_job
from parallel_et.parallel.communicator import Ranks
from parallel_et.storage.atomic import write_whole
from parallel_et.trials.runner import TrialsOptions, mean_and_error, run_series, with_error
from parallel_et.trials.table import Trial, writing

HOLDOUT = 0.1
"""Part of the rows that is held out where the job says nothing of it."""
LONGEST = 100
"""Characters of the name of a file."""


@dataclass(frozen=True)
class Choice:
    """One value of each of the keys, and its trials.

    Attributes
    ----------
    settings : ``section.key=value``, one a key
    """

    settings: tuple[str, ...]
    trials: Sequence[Trial] = ()

    @property
    def words(self) -> str:
        """For people."""
        return " ".join(self.settings)

    @property
    def keys(self) -> list[str]:
        """The keys alone."""
        return [setting.partition("=")[0] for setting in self.settings]

    @property
    def values(self) -> list[str]:
        """The values alone."""
        return [setting.partition("=")[2] for setting in self.settings]

    @property
    def file(self) -> str:
        """The name of the file of its trials, its own for all times."""
        plain = re.sub(r"[^\w.=+-]+", "_", ",".join(self.settings).replace(",", "+"))
        if plain != "+".join(self.settings) or len(plain) > LONGEST:
            plain = f"{plain[:LONGEST]}-{sha256(self.words.encode()).hexdigest()[:8]}"
        return f"{plain}.h5"

    @property
    def held(self) -> np.ndarray:
        """Held-out evidence of each trial."""
        return np.array([trial.holdout for trial in self.trials])


def run_varied(ranks: Ranks, options: TrialsOptions) -> int:
    """Run the trials of all values that are not there yet, and tell of all; collective. Returns the exit code."""
    report = Reporter(ranks.is_root, quiet=False)
    choices, more, folder = ranks.from_root(lambda: plan(options))
    if more:
        report.say(f"{' '.join(more)}, as the job holds out no rows")
    tried = []
    for choice in choices:
        report.say(choice.words)
        settings = (*options.set, *more, *choice.settings)
        code, series = run_series(ranks, replace(options, set=settings, vary=(), output=str(folder / choice.file)))
        if code:
            return code
        if ranks.is_root:
            tried.append(replace(choice, trials=series.done()))
    if ranks.is_root:
        report.say("\n".join(lines(options, tried)))
        with writing(folder):
            write_whole(folder / "table.csv", as_csv(tried).encode())
        report.say(f"table: {folder / 'table.csv'}")
    return 0


def plan(options: TrialsOptions) -> tuple[list[Choice], list[str], Path]:
    """The values to be tried, all of which make a job; what is set besides; and where the trials go."""
    keys = [values_of(text) for text in options.vary]
    choices = [Choice(settings) for settings in product(*keys)]
    more: list[str] = []
    if read_job(options.job, (*options.set, *choices[0].settings)).data.holdout is None:
        more = [f"data.holdout={HOLDOUT}"]
    for choice in choices:
        job = read_job(options.job, (*options.set, *more, *choice.settings))
    return choices, more, Path(options.output or f"runs/{job.name}-vary")


def values_of(text: str) -> list[str]:
    """Settings of a key, one a value, of ``section.key=A,B,…``."""
    key, _, given = text.partition("=")
    try:
        values: list[Any] = tomllib.loads(f"values = [{given}]")["values"]
    except (ValueError, RecursionError):
        values = [word.strip() for word in given.split(",")]
    if not re.fullmatch(r"\s*\w+(\.\w+)+\s*", key) or not values or any(isinstance(v, dict) or v == "" for v in values):
        raise UserError(f"--vary: expected section.key=A,B,… with numbers, words or lists, found {show(text)}")
    return list(dict.fromkeys(f"{key.strip()}={as_toml(value)}" for value in values))


def as_toml(value: Any) -> str:
    """A value of a job in one line; words as they are."""
    return value if isinstance(value, str) else json.dumps(value)


class Row(NamedTuple):
    """What is told of a choice: means over its trials, of which each has a seed, and their standard errors.

    Attributes
    ----------
    below_best : held-out evidence of the best choice less its own, seed by seed
    """

    trials: int
    holdout_evidence: float
    error: float
    below_best: float
    below_best_error: float
    free_energy: float
    seconds: float

    @property
    def near(self) -> bool:
        """Whether it is within a standard error of the best."""
        return self.below_best <= self.below_best_error


def rows_of(tried: Sequence[Choice]) -> tuple[list[Row], Row]:
    """The rows of all choices, and that of the best."""
    best = max(tried, key=lambda choice: choice.held.mean())
    rows = [
        Row(
            len(choice.trials),
            *mean_and_error(choice.held),
            *mean_and_error(best.held - choice.held),
            float(np.mean([trial.free_energy for trial in choice.trials])),
            float(np.mean([trial.seconds for trial in choice.trials])),
        )
        for choice in tried
    ]
    return rows, rows[tried.index(best)]


def lines(options: TrialsOptions, tried: Sequence[Choice]) -> list[str]:
    """The table for people: each value with its held-out evidence, and by how much it is below that of the best."""
    rows, best = rows_of(tried)
    table = [[*tried[0].keys, "held-out evidence", "below the best", "free energy", "seconds"]]
    for choice, row in zip(tried, rows, strict=True):
        below = "best" if row is best else with_error(row.below_best, row.below_best_error)
        held = with_error(row.holdout_evidence, row.error)
        table.append([*choice.values, held, below, f"{row.free_energy:.4f}", f"{row.seconds:.2f}"])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    first = tried[rows.index(best)]
    near = [choice.words for choice, row in zip(tried, rows, strict=True) if row is not best and row.near]
    seeds = [trial.seed for trial in first.trials]
    count = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}; a larger --count tells errors"
    return [
        f"{options.job}: evidence a point of rows that were not learned from, ± standard error; {count}",
        *("  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)) for line in table),
        f"best: {first.words}" + (f"; within a standard error of it: {', '.join(near)}" if near else ""),
    ]


def as_csv(tried: Sequence[Choice]) -> str:
    """The table for programs."""
    text = StringIO()
    write = csv.writer(text, lineterminator="\n").writerow
    write([*tried[0].keys, *Row._fields])
    for choice, row in zip(tried, rows_of(tried)[0], strict=True):
        write([*choice.values, *(f"{number:.10g}" for number in row)])
    return text.getvalue()
