"""The table of a paper's experiments: published and measured figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import fisher_exact

from parallel_et.trials.table import Trial

SIGNIFICANCE = 0.05
"""Significance level: measured figures with a smaller p-value are worse than the published figures."""
LEGEND = (
    "met: at or above the published figure; as good: below it, but not significantly (Fisher's exact test, "
    f"p >= {SIGNIFICANCE}). Trials have the seeds {{seed}} and following, each with its own data."
)
"""Default text below a table."""


@dataclass(frozen=True)
class Row:
    """A row of the table, one experiment."""

    job: str
    published: str
    measured: str
    verdict: str
    trials: int
    seconds: float


def title_of(experiment: dict[str, Any]) -> str:
    """Return the title of an experiment: its job, and its variant if it has one."""
    return f"{experiment['job']}, {experiment['variant']}" if "variant" in experiment else experiment["job"]


def describe_trials(experiment: dict[str, Any]) -> str:
    """Describe the trials of an experiment that has its own seeds."""
    return str(experiment.get("variant", f"of {experiment['job']}"))


def summarise_trials(experiment: dict[str, Any], everything: list[Trial], seeds: range) -> Row:
    """Summarise the trials of these seeds and compare the result with the published figures."""
    done = [trial for trial in everything if trial.seed in seeds]
    complete = [trial for trial in done if trial.found == trial.causes]
    published = experiment["published"]
    found, of = published["found"], published["of"]
    error = float(np.mean([trial.mae for trial in complete])) if complete else None
    return Row(
        title_of(experiment),
        format_figures(found, of, published.get("causes"), published.get("mae"), published.get("note")),
        format_figures(len(complete), len(done), float(np.mean([trial.found for trial in done])), error),
        compare_with_published(published, len(complete), len(done)),
        len(done),
        float(np.mean([trial.seconds for trial in done])),
    )


def compare_with_published(published: dict[str, Any], complete: int, done: int) -> str:
    """Return the verdict on ``complete`` of ``done`` trials: met, as good or worse."""
    found, of = published["found"], published["of"]
    p = float(fisher_exact([[complete, done - complete], [found, of - found]], "less").pvalue)
    return f"worse (p = {p:.2g})" if p < SIGNIFICANCE else "as good" if complete * of < found * done else "met"


def format_figures(found: int, of: int, causes: float | None, mae: float | None, note: str | None = None) -> str:
    """Format how often all causes were found, their mean number, and the mean absolute error."""
    words = [note or f"{found} of {of}"]
    words += [] if causes is None else [f"{causes:.2f} causes"]
    words += [] if mae is None else [f"MAE {mae:.3f}"]
    return ", ".join(words)


def format_table(table: dict[str, Any], rows: Sequence[Row], data: Mapping[str, str]) -> str:
    """Format the table of all experiments so far in Markdown; ``data``: descriptions of the data by name."""
    lines = [
        f"# {table['title']}",
        "",
        f"| experiment | {table.get('heading', 'published')} | here | verdict | trials | seconds per trial |",
        "|---|---|---|---|---|---|",
        *(
            f"| {row.job} | {row.published} | {row.measured} | {row.verdict} | {row.trials} | {row.seconds:.3g} |"
            for row in rows
        ),
        "",
        table.get("legend", LEGEND).format(seed=table["seed"]),
        *sorted(
            {f"Those {describe_trials(e)} have {e['seed']} and following." for e in table["experiment"] if "seed" in e}
        ),
    ]
    for name, words in data.items():
        lines += ["", f"Data `{name}`: {words}."]
    return "\n".join(lines) + "\n"
