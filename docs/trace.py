"""Trace a data point through one EM iteration: the functions that it passes, as a list and as a picture.

``python docs/trace.py docs/pictures/trace.png`` prints the list of docs/explanation/architecture.md and draws its picture.
"""

import sys
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

import parallel_et
from parallel_et.data.base import ArrayRows
from parallel_et.em.loop import em
from parallel_et.job.job import check_job
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.setup import set_up

PACKAGE = Path(*parallel_et.__path__)
DEEPEST = 7
"""Calls below an iteration that are shown."""
SHOWN = ("em", "models", "parallel", "schemes")
"""Packages whose functions are shown, besides the kernels."""
MINOR = (
    "timer.",
    "shared_memory.",
    "work_sharing.",
    "rows.",
    "shards.",
    "minibatches.",
    "rounding.",
    "schedule.Schedule.finished",
    "problem.Problem.algebra",
    "problem.Problem.dealt",
    "problem.Problem.nan_if_missing",
    "problem.Problem.learners",
    "e_step.EStep.new_point_states",
    "communicator.Ranks.together",
    "Schedule.step",
    "moments.Moments.",
    "diagonals",
    "LinearEvaluator.",
    "LinCAEvaluator.",
    "LinearMean.scales",
    "Bernoulli.odds",
    "Bernoulli.empty",
    "linear.strips",
    "restart",
    "held_out_evidence",
    "m_step.MStep.new_averages",
    "truncated.significant",
    "problem.Problem.passes",
    "exact_sum.ExactSum.words",
    "exact_sum.ExactSum.check",
    "linear.LinearModel.usage",
    "norms",
    "base",
    "communicator.Ranks.max",
    "initial_state",
    "name_of",
    "shares_memory",
    "value_at",
    "scale_for",
    "scales_for",
    "with_random",
    "of_root",
    "largest_error",
    "moment_statistics",
    "squared_residuals",
    "Tables.",
    "linear_algebra.solve_with",
    "linear_algebra.find_right",
)
"""Parts of names of functions that only help others."""
KERNELS = ("fixed", "linear", "residuals", "rows", "select", "triangles")
COLOURS = {
    "em": "tab:blue",
    "models": "tab:orange",
    "parallel": "tab:gray",
    "schemes": "tab:green",
    "kernels": "tab:red",
}
JOB = {
    "model": {"name": "linca", "causes": 6},
    "data": {"source": "array:points"},
    "inference": {"candidates": 3, "gamma": 2},
    "anneal": {"iterations": 1},
}


class Call(NamedTuple):
    """A function that was called, with its depth below the loop."""

    depth: int
    package: str
    name: str


def helps(name: str) -> bool:
    """Return whether a function is private, or only helps others."""
    private = any(part.startswith(("_", "<")) for part in name.split("."))
    return private or any(word in name for word in MINOR)


def trace() -> list[Call]:
    """Return the calls of one iteration over a block of points, each once, in order."""
    problem, params, _ = set_up(check_job(JOB), ArrayRows(np.random.default_rng(1).normal(size=(16, 8))), Ranks())
    calls: dict[tuple[str, str], Call] = {}
    stack: list[bool] = []

    def note(package: str, name: str) -> bool:
        shown = package in (*SHOWN, "kernels") and sum(stack) <= DEEPEST and not helps(name)
        if shown:
            calls.setdefault((package, name), Call(sum(stack), package, name))
        return shown

    def follow(frame, event, _):
        if event == "call":
            path = Path(frame.f_code.co_filename)
            package = path.relative_to(PACKAGE).parts[0] if path.is_relative_to(PACKAGE) else ""
            stack.append(note(package, f"{path.stem}.{frame.f_code.co_qualname}"))
        elif event == "return" and stack:
            stack.pop()

    def named(kernel, name):
        @wraps(kernel)
        def call(*args):
            note("kernels", name)
            return kernel(*args)

        return call

    for module in (import_module(f"parallel_et.kernels.{name}") for name in KERNELS):
        for name, kernel in list(vars(module).items()):
            if type(kernel).__module__.startswith(("numba", "parallel_et.kernels")) and callable(kernel):
                setattr(module, name, named(kernel, f"{module.__name__.rpartition('.')[2]}.{name}"))
    sys.setprofile(follow)
    list(em(problem, Ranks(), problem.initial_state(params)))
    sys.setprofile(None)
    return list(calls.values())


def listed(calls: list[Call]) -> str:
    """Return the calls as a list in Markdown."""
    return "".join(f"{'  ' * call.depth}- `{call.package}/{call.name}`\n" for call in calls)


def draw(calls: list[Call], picture: str) -> None:
    """Draw the calls from top to bottom, indented by their depth and coloured by their package."""
    figure = Figure((9, 0.28 * len(calls) + 0.4))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 12), ylim=(len(calls), -1))
    axes.axis("off")
    for row, call in enumerate(calls):
        for earlier in reversed(range(row)):
            if calls[earlier].depth < call.depth:
                left = 0.35 + calls[earlier].depth
                axes.plot([left, left, call.depth + 0.15], [earlier + 0.4, row, row], color="silver", lw=1, zorder=0)
                break
        box = {
            "boxstyle": "round,pad=0.3",
            "facecolor": COLOURS[call.package],
            "edgecolor": "none",
            "alpha": 0.25,
        }
        axes.text(call.depth + 0.25, row, f"{call.package}/{call.name}", va="center", fontsize=9, bbox=box)
    figure.savefig(picture, dpi=80)


if __name__ == "__main__":
    found = trace()
    print(listed(found), end="")
    draw(found, sys.argv[1])
