"""Trace a data point through one EM iteration, and show the called functions as a list and as a picture.

``python docs/trace.py docs/pictures/trace.png`` prints the list of docs/explanation/architecture.md and draws it.
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
LARGEST_DEPTH = 7
"""Largest depth of the shown calls below an iteration."""
SHOWN_PACKAGES = ("em", "models", "parallel", "schemes")
"""Packages whose functions are shown, in addition to the kernels."""
HELPERS = (
    "timer.",
    "shared_memory.",
    "work_sharing.",
    "rows.",
    "shards.",
    "minibatches.",
    "rounding.",
    "schedule.Schedule.finished",
    "problem.Problem.algebra",
    "problem.Problem.is_distributed",
    "problem.Problem.nan_if_missing",
    "problem.Problem.trainables",
    "e_step.EStep.new_point_states",
    "communicator.Ranks.synchronise_errors",
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
    "largest_product",
    "scale_for",
    "scales_for",
    "add_random_atoms",
    "broadcast_object",
    "largest_error",
    "moment_statistics",
    "squared_residuals",
    "Tables.",
    "linear_algebra.solve_with",
    "linear_algebra.factor_right",
)
"""Parts of the names of helper functions, which are not shown."""
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


def is_helper(name: str) -> bool:
    """Return whether a function is private or a helper of other functions."""
    private = any(part.startswith(("_", "<")) for part in name.split("."))
    return private or any(word in name for word in HELPERS)


def trace() -> list[Call]:
    """Return the calls of one iteration over a block of points, each once, in order."""
    problem, params, _ = set_up(check_job(JOB), ArrayRows(np.random.default_rng(1).normal(size=(16, 8))), Ranks())
    calls: dict[tuple[str, str], Call] = {}
    stack: list[bool] = []

    def note(package: str, name: str) -> bool:
        shown = package in (*SHOWN_PACKAGES, "kernels") and sum(stack) <= LARGEST_DEPTH and not is_helper(name)
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
