"""Trials with several values of a key, compared by their held-out evidence."""

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
from parallel_et.core.schema import format_value
from parallel_et.errors import UserError
from parallel_et.job.job import read_job
from parallel_et.parallel.communicator import Ranks
from parallel_et.storage.atomic import write_atomically
from parallel_et.trials.runner import TrialsOptions, mean_and_error, run_series, with_error
from parallel_et.trials.table import Trial, writing

HOLDOUT = 0.1
"""Default fraction of held-out rows."""
MAX_NAME_CHARACTERS = 100
"""Longest name of a file of trials."""


@dataclass(frozen=True)
class Choice:
    """One value for each key, and its trials.

    Attributes
    ----------
    settings : ``section.key=value``, one a key
    """

    settings: tuple[str, ...]
    trials: Sequence[Trial] = ()

    @property
    def description(self) -> str:
        """The settings in one line."""
        return " ".join(self.settings)

    @property
    def keys(self) -> list[str]:
        """The keys without values."""
        return [setting.partition("=")[0] for setting in self.settings]

    @property
    def values(self) -> list[str]:
        """The values without keys."""
        return [setting.partition("=")[2] for setting in self.settings]

    @property
    def file(self) -> str:
        """Unique and stable name of the file of the trials."""
        plain = re.sub(r"[^\w.=+-]+", "_", ",".join(self.settings).replace(",", "+"))
        if plain != "+".join(self.settings) or len(plain) > MAX_NAME_CHARACTERS:
            plain = f"{plain[:MAX_NAME_CHARACTERS]}-{sha256(self.description.encode()).hexdigest()[:8]}"
        return f"{plain}.h5"

    @property
    def holdout(self) -> np.ndarray:
        """Held-out evidence of each trial."""
        return np.array([trial.holdout for trial in self.trials])


def run_sweep(ranks: Ranks, options: TrialsOptions) -> int:
    """Run the missing trials of all values and print a table; return the exit code. Collective."""
    report = Reporter(ranks.is_root, quiet=False)
    choices, more, folder = ranks.from_root(lambda: plan(options))
    if more:
        report.log(f"{' '.join(more)} is added, because the job holds out no rows")
    tried = []
    for choice in choices:
        report.log(choice.description)
        settings = (*options.set, *more, *choice.settings)
        code, series = run_series(ranks, replace(options, set=settings, vary=(), output=str(folder / choice.file)))
        if code:
            return code
        if ranks.is_root:
            tried.append(replace(choice, trials=series.done()))
    if ranks.is_root:
        report.log("\n".join(table_lines(options, tried)))
        with writing(folder):
            write_atomically(folder / "table.csv", as_csv(tried).encode())
        report.log(f"table: {folder / 'table.csv'}")
    return 0


def plan(options: TrialsOptions) -> tuple[list[Choice], list[str], Path]:
    """Return the choices of values, all valid, additional settings, and the folder of the trials."""
    keys = [values_of(text) for text in options.vary]
    choices = [Choice(settings) for settings in product(*keys)]
    more: list[str] = []
    if read_job(options.job, (*options.set, *choices[0].settings)).data.holdout is None:
        more = [f"data.holdout={HOLDOUT}"]
    for choice in choices:
        job = read_job(options.job, (*options.set, *more, *choice.settings))
    return choices, more, Path(options.output or f"runs/{job.name}-vary")


def values_of(text: str) -> list[str]:
    """Return the settings of a key, one for each value of ``section.key=A,B,…``."""
    key, _, given = text.partition("=")
    try:
        values: list[Any] = tomllib.loads(f"values = [{given}]")["values"]
    except (ValueError, RecursionError):
        values = [word.strip() for word in given.split(",")]
    if not re.fullmatch(r"\s*\w+(\.\w+)+\s*", key) or not values or any(isinstance(v, dict) or v == "" for v in values):
        raise UserError(f"--vary: expected section.key=A,B,… with numbers, words or lists, found {format_value(text)}")
    return list(dict.fromkeys(f"{key.strip()}={as_toml(value)}" for value in values))


def as_toml(value: Any) -> str:
    """Return a value as TOML in one line; words remain without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


class Row(NamedTuple):
    """The row of a choice in the table: means over its trials, and standard errors.

    Attributes
    ----------
    below_best : mean over seeds of the held-out evidence of the best choice minus that of this choice
    """

    trials: int
    holdout_evidence: float
    error: float
    below_best: float
    below_best_error: float
    free_energy: float
    seconds: float

    @property
    def near_best(self) -> bool:
        """True if the choice is within a standard error of the best."""
        return self.below_best <= self.below_best_error


def rows_of(tried: Sequence[Choice]) -> tuple[list[Row], Row]:
    """Return the rows of all choices, and the row of the best."""
    best = max(tried, key=lambda choice: choice.holdout.mean())
    rows = [
        Row(
            len(choice.trials),
            *mean_and_error(choice.holdout),
            *mean_and_error(best.holdout - choice.holdout),
            float(np.mean([trial.free_energy for trial in choice.trials])),
            float(np.mean([trial.seconds for trial in choice.trials])),
        )
        for choice in tried
    ]
    return rows, rows[tried.index(best)]


def table_lines(options: TrialsOptions, tried: Sequence[Choice]) -> list[str]:
    """Return the lines of the table for the terminal."""
    rows, best = rows_of(tried)
    table = [[*tried[0].keys, "held-out evidence", "below the best", "free energy", "seconds"]]
    for choice, row in zip(tried, rows, strict=True):
        below = "best" if row is best else with_error(row.below_best, row.below_best_error)
        held = with_error(row.holdout_evidence, row.error)
        table.append([*choice.values, held, below, f"{row.free_energy:.4f}", f"{row.seconds:.2f}"])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    best_choice = tried[rows.index(best)]
    near = [choice.description for choice, row in zip(tried, rows, strict=True) if row is not best and row.near_best]
    seeds = [trial.seed for trial in best_choice.trials]
    count = (
        f"seeds {seeds[0]} to {seeds[-1]}"
        if len(seeds) > 1
        else f"seed {seeds[0]}; a larger --count gives standard errors"
    )
    return [
        f"{options.job}: held-out evidence per point, ± standard error; {count}",
        *("  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)) for line in table),
        f"best: {best_choice.description}"
        + (f"; within one standard error of the best: {', '.join(near)}" if near else ""),
    ]


def as_csv(tried: Sequence[Choice]) -> str:
    """Return the table as CSV."""
    text = StringIO()
    write = csv.writer(text, lineterminator="\n").writerow
    write([*tried[0].keys, *Row._fields])
    for choice, row in zip(tried, rows_of(tried)[0], strict=True):
        write([*choice.values, *(f"{number:.10g}" for number in row)])
    return text.getvalue()
