"""The table of a paper's experiments: what it printed, and what came out here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import fisher_exact

from parallel_et.trials.table import Trial

CHANCE = 0.05
"""Figures that a program as good as the paper's would fall below less often than this are called worse."""
LEGEND = (
    "met: at or above the published figure; as good: below it, but no more than chance explains (Fisher's exact test, "
    f"p >= {CHANCE}). Trials have the seeds {{seed}} and following, and data of their own."
)
"""What stands under a table that has no words of its own."""


@dataclass(frozen=True)
class Row:
    """One experiment in the table that is printed: words for people."""

    job: str
    published: str
    here: str
    verdict: str
    trials: int
    seconds: float


def title_of(experiment: dict[str, Any]) -> str:
    """How an experiment is told from others of the same job."""
    return f"{experiment['job']}, {experiment['variant']}" if "variant" in experiment else experiment["job"]


def whose(experiment: dict[str, Any]) -> str:
    """Which trials these are, where they have seeds of their own."""
    return str(experiment.get("variant", f"of {experiment['job']}"))


def judge(experiment: dict[str, Any], everything: list[Trial], seeds: range) -> Row:
    """The trials of these seeds beside what is published."""
    done = [trial for trial in everything if trial.seed in seeds]
    complete = [trial for trial in done if trial.found == trial.causes]
    published = experiment["published"]
    found, of = published["found"], published["of"]
    error = float(np.mean([trial.mae for trial in complete])) if complete else None
    return Row(
        title_of(experiment),
        figures(found, of, published.get("causes"), published.get("mae"), published.get("note")),
        figures(len(complete), len(done), float(np.mean([trial.found for trial in done])), error),
        beside(published, len(complete), len(done)),
        len(done),
        float(np.mean([trial.seconds for trial in done])),
    )


def beside(published: dict[str, Any], complete: int, done: int) -> str:
    """The verdict on so many of the trials that are done beside those that are published."""
    found, of = published["found"], published["of"]
    p = float(fisher_exact([[complete, done - complete], [found, of - found]], "less").pvalue)
    return f"worse (p = {p:.2g})" if p < CHANCE else "as good" if complete * of < found * done else "met"


def figures(found: int, of: int, causes: float | None, mae: float | None, note: str | None = None) -> str:
    """How often all causes were found, how many on average and how closely."""
    words = [note or f"{found} of {of}"]
    words += [] if causes is None else [f"{causes:.2f} causes"]
    words += [] if mae is None else [f"MAE {mae:.3f}"]
    return ", ".join(words)


def markdown(table: dict[str, Any], rows: Sequence[Row], data: Mapping[str, str]) -> str:
    """The table of all experiments so far; ``data`` tells which data these are, by name."""
    lines = [
        f"# {table['title']}",
        "",
        f"| experiment | {table.get('heading', 'published')} | here | verdict | trials | seconds a trial |",
        "|---|---|---|---|---|---|",
        *(
            f"| {row.job} | {row.published} | {row.here} | {row.verdict} | {row.trials} | {row.seconds:.3g} |"
            for row in rows
        ),
        "",
        table.get("legend", LEGEND).format(seed=table["seed"]),
        *sorted({f"Those {whose(e)} have {e['seed']} and following." for e in table["experiment"] if "seed" in e}),
    ]
    for name, words in data.items():
        lines += ["", f"Data `{name}`: {words}."]
    return "\n".join(lines) + "\n"
