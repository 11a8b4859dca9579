"""The contract between the engine, the models and the schemes; ``terms`` has what is handed between them.

A model and a scheme are sets of functions without memory. A model's minimum is its parameters, its mean with a prior
and a noise (or its log joint), its sums and its M-step; all else has a default that is made of these, and is replaced
where something faster is known.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from parallel_et.core import gibbs
from parallel_et.core.gibbs import Chains, Sweeps
from parallel_et.core.posterior import Listed, Posterior, Sparse, Tabled, sum_rows, weigh
from parallel_et.core.random import Random
from parallel_et.core.schema import Section
from parallel_et.core.states import Latents, Table, best, clashes, in_lists
from parallel_et.core.terms import (
    Block,
    Kept,
    Knob,
    Knobs,
    Limited,
    Noise,
    Param,
    Params,
    Prior,
    Sum,
    Summary,
    Sums,
    Totals,
)
from parallel_et.errors import UserError
from parallel_et.kernels import VACANT
from parallel_et.kernels.rows import padded

UNUSED = 1e-12
"""A cause that carries less weight than this share of a point, on average, is unused: its field is kept as it was."""
ROOM = 1 << 20
"""Numbers, pairs of point and state times dimensions, that a default computes at a time."""


class EStep(NamedTuple):
    """What the E-step of one iteration has for all blocks.

    Attributes
    ----------
    model : the model
    ready : what the model has prepared
    guide : what the scheme has prepared
    chooser : what the selection has prepared
    beta : 1 / T
    random : random numbers of this iteration, by point
    phase : is told what is being done
    """

    model: "Model"
    ready: Any
    guide: Any
    chooser: Any
    beta: float
    random: Random
    phase: Callable[[str], None]


class Learner:
    """Whatever has parameters that sums over points determine: models, and schemes and selections that learn."""

    params: Mapping[str, Param] = {}
    """Its parameters by name; their axes and limits may depend on its options."""
    stages: tuple[str, ...] = ()
    """Passes over the posteriors that its M-step takes, each with sums and a maximisation of its own."""
    online: bool = False
    """Whether its M-step takes a step from the parameters by the sums of a batch, which then are not averaged."""
    dealt: bool = False
    """Whether its M-step is large: it is then done by all ranks at once, which share its pieces by ``knobs.deal``."""

    def lacks(self, method: str) -> UserError:
        """The line that tells the author of a class that a method is missing."""
        return UserError(f"{type(self).__name__}: expected a method {method}, found none")

    def takes(self, stage: str, knobs: Knobs) -> bool:
        """Whether an iteration has a stage; by default it has all, and it always has the first."""
        return True

    def prepare(self, params: Params, knobs: Knobs) -> Any:
        """What one iteration computes once, from the parameters alone; by default nothing but these."""
        return params

    def sums(self, stage: str) -> Mapping[str, Sum]:
        """The statistics of a stage by name."""
        raise self.lacks("sums")

    def collect(self, stage: str, ready: Any, block: Block, posterior: Any, used: np.ndarray, total: Sums) -> None:
        """Add the statistics of the points of a block that are ``used``, (n,) bool, to ``total``."""
        raise self.lacks("collect")

    def carried(self, stage: str, sums: Totals, old: Params, new: Params) -> Totals:
        """Sums that were collected with the parameters ``old`` as they are with ``new``, by the same posteriors.

        For minibatches, which average the sums of several M-steps; by default they stay as they are.
        """
        return sums

    def maximise(self, stage: str, params: Params, sums: Totals, knobs: Knobs, summary: Summary) -> Params:
        """The M-step: the parameters that change. ``sums`` are over all points in M; ``sums["points"]``: how many."""
        raise self.lacks("maximise")

    def revise(
        self,
        stage: str,
        params: Params,
        sums: Totals,
        knobs: Knobs,
        summary: Summary,
        before: Params,
        earlier: Totals,
    ) -> Params:
        """The M-step of a stage after the first, which is also told the parameters ``before`` the iteration.

        And the sums of the ``earlier`` stage; by default it is as that of the first.
        """
        return self.maximise(stage, params, sums, knobs, summary)


class Model(Learner):
    """A generative model of points of D dimensions.

    States come as arrays (..., g) of active atoms, padded with -1, with any axes before the last, and so does what is
    computed of them. Points come as arrays (..., D) whose axes before the last broadcast with these.
    """

    Options: ClassVar[type[Section]]
    """The keys of [model] of its own, besides those that follow from its parameters."""
    learns: ClassVar[tuple[str, ...]] = ()
    """The parameters that are learned where a job names none, but for those that it gives a number; () for all."""
    knobs: ClassVar[Mapping[str, Knob]] = {}
    """Its own schedules by name."""
    first_job: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Keys by section that a job to begin with needs besides the usual ones, which are those of bars that add up."""
    stages: tuple[str, ...] = ("all",)
    prior: Prior
    """How states are distributed before a point is seen."""
    noise: Noise
    """How points are distributed around the mean of a state."""
    latents: Latents
    """Its hidden states; by default all sets of its causes."""
    valued: ClassVar[bool] = False
    """Whether active causes have values, of which a posterior then has means and variances."""
    sizes: Mapping[str, int]
    """Lengths of the axes of its parameters."""
    grid: tuple[int, int] | None = None
    """Rows and columns of the places where causes stand, if they do: then atom h + x H is cause h at place x."""
    alike: ClassVar[bool] = False
    """Whether the candidates and the posterior of a point, over a table and without single causes, have the same bits
    whatever points are beside it; then ``collect`` may get several blocks as one, and adds up each by itself. It holds
    for the very class that says so: one that is derived may do something else."""
    evidence: ClassVar[bool] = True
    """Whether F_n is a bound of the evidence, as a cut and the renewal of fields take it; else the mean log joint."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.alike = vars(cls).get("alike", False)

    def __init__(self, options: Any, dims: int) -> None:
        self.options = options
        self.H = options.causes
        self.D = dims
        self.width = padded(dims)
        self.latents = Latents(self.H)
        self.sizes = {"D": dims, "H": self.H}

    @classmethod
    def can(cls, what: str) -> bool:
        """Whether it has what a scheme asks for by the name of a method; a log joint also if it has a mean.

        It can sample by a log joint or a conditional too.
        """
        if what == "sample" and (cls.redraw is not Model.redraw or cls.can("log_joint")):
            return True
        by_mean = what == "log_joint" and cls.mean is not Model.mean
        return by_mean or getattr(cls, what, None) is not getattr(Model, what, None)

    # what it declares

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a parameter."""
        axes = self.params[name].axes + "H" * (name in self.options.each)
        if unknown := set(axes) - set(self.sizes):
            expected = " or ".join(self.sizes)
            raise UserError(f"{self._name}.params: {name}: expected the axes {expected}, found {''.join(unknown)}")
        return tuple(self.sizes[axis] for axis in axes)

    @classmethod
    def keys_told_by(cls, arrays: Params) -> dict[str, Any]:
        """Keys of [model] of its own that parameters, which a file has, tell of."""
        return {}

    def start(self, name: str, summary: Summary) -> tuple[Any, float]:
        """Mean and standard deviation of the values that a parameter without a start of its own begins with.

        By default those of fields of any sign: zero, and a third of the data's root mean square. The mean may be an
        array that is broadcast.
        """
        return 0.0, summary.rms / 3 or 1.0

    def filled(self, name: str, value: float) -> np.ndarray:
        """A parameter that begins with one number."""
        return np.full(self.shape(name), value)

    def rows_for(self, name: str) -> int:
        """How many points a parameter is made of that begins with points of the data; by default one for each cause."""
        return self.H

    def from_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """A parameter that begins with points of the data, which come as columns (D, H): by default as its columns.

        There are as many as ``rows_for`` says, or as there are points.
        """
        return rows

    def from_directions(self, fields: np.ndarray, points: np.ndarray, along: np.ndarray) -> np.ndarray:
        """Fields (D, m) of causes that were found as directions in which points (n, D), some of all, are skewed.

        ``fields`` are what they are if causes add up, and by default are taken; ``along`` (n, m) tells how far each of
        the points lies in each direction.
        """
        return fields

    def beside(
        self, params: Params, fields: np.ndarray, points: np.ndarray, rest: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Fields (D, m) of causes that are missing, and by how much each raises the free energy (m,), most first.

        ``fields`` (D, k) were found of what is left, ``rest`` (n, D), of points (n, D), some of all. By default they
        are taken, and nothing is known of what they gain.
        """
        return fields, None

    def released(self, W: np.ndarray, points: np.ndarray, active: np.ndarray) -> np.ndarray:
        """The fields (D, H) with what holds some of their values taken off, where learning could not move these.

        ``active`` (n, atoms) are the probabilities of the causes in points (n, D), some of all. By default they are as
        they were: most models have no such values.
        """
        return W

    def beside_moments(self, probability: float, summary: Summary) -> Mapping[str, float]:
        """Where parameters begin of which the job says nothing, if fields begin by moments of the data.

        These also tell the ``probability`` of a cause. By default all begin as they do otherwise.
        """
        return {}

    def check(self, summary: Summary) -> None:
        """Refuse data that are none of the model's, by a UserError."""

    def constrain(self, params: Params) -> Params:
        """The parameters within their limits."""
        limits = {name: (param.low, param.high) for name, param in self.params.items()}
        free = (-np.inf, np.inf)
        return {
            name: value if limits.get(name, free) == free else np.clip(value, *limits[name])
            for name, value in params.items()
        }

    def at_limits(self, params: Params, summary: Summary) -> Iterator[str]:
        """Yield a clause for each parameter that a floor or a limit of double precision holds, by default the noise's.

        It names the parameter and its value, and ends without a full stop.
        """
        noise = getattr(self, "noise", None)
        return noise.at_limits(params, summary) if isinstance(noise, Limited) else iter(())

    def nanoseconds(self, states: int) -> float:
        """What a point with so many states takes in an iteration, roughly."""
        return 20.0 * self.D * states

    # the joint, and points drawn from it

    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        """Mean of a point given its state, (..., D)."""
        raise self.lacks("mean")

    def pictures(self, params: Params) -> np.ndarray:
        """Each cause alone, as a point, (D, H): by default its field."""
        return params["W"]

    def log_joint(self, ready: Any, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        """log p(s, y), (...); by default of prior, mean and noise, for a model that prepares nothing else."""
        return self.prior.log(ready, states) + self.noise.log(ready, Y, self.mean(ready, states))

    def draw(self, params: Params, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Points (count, D) and the states (count, g) that made them."""
        states = self.prior.draw(params, rng, count)
        return self.noise.draw(params, rng, self.mean(params, states)), states

    # the E-step

    def log_singles(self, ready: Any, block: Block) -> np.ndarray:
        """log p(s, y_n) of all states with a single atom, (n, atoms)."""
        states = np.arange(self.latents.atoms, dtype=np.int32)[:, None]
        logs = np.empty((len(block), len(states)))
        for some in self._pieces(len(block), len(states)):
            logs[some] = self.log_joint(ready, block.Y[some, None], states)
        return logs

    def observe(self, ready: Any, block: Block, singles: bool) -> Any:
        """What a block needs more than once, also for single atoms outside the candidates if these are considered."""
        return block

    def observe_states(self, ready: Any, block: Block) -> Any:
        """What a block needs more than once where listed states of any atoms are considered."""
        return self.observe(ready, block, False)

    def log_states(self, ready: Any, seen: Any, states: np.ndarray) -> np.ndarray:
        """log p(s, y_n) of states (n, K, g) that are listed for each point, (n, K); -inf for vacant places."""
        logs = np.empty(states.shape[:2])
        for some in self._pieces(len(states), states.shape[1]):
            logs[some] = self.log_joint(ready, seen.Y[some, None], np.maximum(states[some], -1))
        logs[states[:, :, 0] == VACANT] = -np.inf
        return logs

    def select(self, ready: Any, seen: Any, count: int) -> np.ndarray:
        """The ``count`` atoms of most promise, in rising order, (n, count) int32; by default the best single ones."""
        return best(self.log_singles(ready, seen), count)

    def over_table(
        self, ready: Any, seen: Any, candidates: np.ndarray, table: Table, beta: float, singles: bool
    ) -> Posterior:
        """q_n ~ p(s, y_n)^beta on the states of a table over the candidates (n, H'), and on single atoms outside these.

        What was ``seen`` of the block may be used up by this.
        """
        latents, logs = self.latents, np.empty((len(candidates), len(table)))
        everything = candidates.shape[1] == latents.atoms
        for some in self._pieces(len(candidates), len(table)):
            states = table.members if everything else table.states(candidates[some])
            logs[some] = self.log_joint(ready, seen.Y[some, None], states)
            if latents.owner and not everything:
                logs[some][clashes(states, latents.owner)] = -np.inf
        if singles:
            alone = self.log_singles(ready, seen)
            np.put_along_axis(alone, candidates, -np.inf, 1)  # these are in the table
            logs = np.hstack([logs, alone])
        evidence, q = weigh(logs, beta)
        return Tabled(evidence, candidates, table, *map(Sparse.of, np.split(q, [len(table)], 1)))

    def over_listed(self, ready: Any, seen: Any, evidence: np.ndarray, states: np.ndarray, q: Sparse) -> Posterior:
        """The posterior of states (n, K, g) that are listed for each point, with these weights; by default just that.

        A model whose causes have values makes it one of these as well.
        """
        return Listed(evidence, states, q)

    def observe_chains(self, ready: Any, block: Block) -> Any:
        """What a block needs more than once where its states are sampled."""
        return self.observe_states(ready, block)

    def sample(self, ready: Any, seen: Any, candidates: np.ndarray, sweeps: Sweeps, beta: float) -> Posterior:
        """Gibbs sampling of p(s, y_n)^beta over the candidates (n, C), in rising order; by default with ``redraw``."""
        return gibbs.sample(self, ready, seen, candidates, sweeps, beta)

    def begin(self, chains: Chains) -> Chains:
        """Chains before the first sweep; a model whose causes have values gives them some."""
        return chains

    def redraw(self, ready: Any, seen: Any, chains: Chains, site: int, beta: float, uniforms: np.ndarray) -> Chains:
        """Draw candidate ``site`` of each chain anew, given all others, by numbers in [0, 1), (n, chains).

        By default by log joints; a model whose causes have values draws them here as well.
        """
        return gibbs.redrawn(self, ready, seen, chains, site, beta, uniforms)

    def best(self, ready: Any, block: Block, posterior: Any) -> np.ndarray:
        """The most probable of the considered states, of equal ones the first, (n, g)."""
        return posterior.best()

    def reconstruct(self, ready: Any, params: Params, posterior: Any) -> np.ndarray:
        """The expected mean of y of each point, (n, D)."""
        point, states, q = posterior.pairs(np.ones(len(posterior.evidence), bool))
        total = np.zeros((len(posterior.evidence), self.D))
        for some in self._pieces(len(q), 1):
            total += sum_rows(point[some], q[some, None] * self.mean(params, states[some]), len(total))
        return total

    def decode(self, params: Params, active: np.ndarray) -> np.ndarray:
        """The mean of y, (n, D), of atoms that are active by these probabilities (n, atoms), each by itself.

        By default that of the state which is then most probable; of a mean that is linear the expected one.
        """
        state, atom = np.nonzero(active > 0.5)
        return self.mean(params, in_lists(state, atom, len(active)))

    # the M-step

    def collect(self, stage: str, ready: Any, block: Block, posterior: Any, used: np.ndarray, total: Sums) -> None:
        """Add what ``statistics`` makes of the pairs of a used point and a state that matters."""
        point, states, q = posterior.pairs(used)
        for some in self._pieces(len(q), 1):
            found = self.statistics(stage, ready, block.Y[point[some]], states[some], q[some])
            if set(found) != set(self.sums(stage)):
                expected = ", ".join(self.sums(stage))
                raise UserError(f"{self._name}.statistics: expected the sums {expected}, found {', '.join(found)}")
            for name, values in found.items():
                total.add(name, values)

    def statistics(self, stage: str, ready: Any, Y: np.ndarray, states: np.ndarray, q: np.ndarray) -> Mapping[str, Any]:
        """The sums of a stage over m pairs of a point (m, D) and a state (m, g), whose weights are (m,)."""
        raise self.lacks("statistics")

    def usage(self, sums: Totals) -> np.ndarray:
        """Weight of each cause in the sums of the first stage, (H,): ``active``, or the diagonal of ``ss``."""
        if "active" not in sums and "ss" not in sums:
            raise UserError(
                f"{self._name}.sums: expected active (H,) or ss (H, H), or usage(), found {', '.join(sums)}"
            )
        return sums["active"] if "active" in sums else np.diag(sums["ss"])

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _pieces(self, count: int, states: int) -> Iterator[slice]:
        step = max(1, ROOM // (states * self.D))
        return (slice(start, min(start + step, count)) for start in range(0, count, step))


class Selection(Learner):
    """Which atoms are candidates for a point: by default those that the model selects.

    One that learns has parameters, sums and an M-step of its own. Its first stage has sums of the posteriors of an
    iteration under the parameters that this began with.
    """

    def initial(self, points: int, dims: int) -> Params:
        """Its own parameters before the first iteration, for so many points of so many dimensions; asked for first."""
        return {}

    def keep(self, points: int) -> Kept:
        """What is to be kept of each point between iterations, as it is before the first, and of new points."""
        return {}

    def select(self, step: EStep, block: Block, seen: Any, kept: Kept, count: int) -> np.ndarray:
        """The ``count`` atoms of most promise, in rising order, (n, count) int32; ``seen`` is for the model."""
        return step.model.select(step.ready, seen, count)

    def note(self, step: EStep, block: Block, posterior: Posterior, kept: Kept) -> Kept:
        """What is kept of points from now on that are learned from, where that is anything."""
        return {}


class Scheme(Learner, ABC):
    """Which states are considered for a point, and what is kept of it between iterations.

    Attributes
    ----------
    count : states that are considered for a point
    most : active atoms that they have at most
    candidates : preselected atoms of a point; 0 if there are none
    words : what is considered, for people
    """

    Options: ClassVar[type[Section]]
    """The keys of [inference]."""
    needs: ClassVar[tuple[str, ...]] = ("log_joint",)
    """What it asks of a model."""
    count: int
    most: int
    candidates: int
    words: str
    draws: ClassVar[bool] = False
    """Whether posteriors are drawn, by random numbers that depend on the number of a point."""
    pairs: int = 0
    """Pairs of atoms that may both be active in a state of a point, where those of its candidates are all; else 0."""
    rounds: int = 1
    """How often it is to look at points that it has not kept anything of."""
    selection: Selection = Selection()
    """How it preselects, if it does."""

    @abstractmethod
    def __init__(self, options: Any, latents: Latents) -> None: ...

    def initial(self) -> Params:
        """Its own parameters before the first iteration."""
        return {}

    def keep(self, points: int) -> Kept:
        """What is to be kept of each point between iterations, as it is before the first."""
        return {}

    def vacant(self, points: int) -> Kept:
        """What it and its selection keep of each point, as it is before the first iteration."""
        return {**self.keep(points), **self.selection.keep(points)}

    @abstractmethod
    def infer(self, step: EStep, block: Block, kept: Kept) -> tuple[Posterior, Kept]:
        """The posterior of a block, and what is kept of its points from now on; asked again it gives the same bits."""

    def selected(self, step: EStep, block: Block, posterior: Any) -> np.ndarray:
        """The candidates (n, H') of points that are shown for the first time, if there are any."""
        return posterior.candidates

    def alike(self, model: Model) -> bool:
        """Whether the posterior of a point has the same bits whatever points are beside it."""
        return False

    def alone(self, step: EStep, block: Block) -> np.ndarray:
        """Which atoms are considered as the only ones of a state, (n, atoms) bool."""
        return np.ones((len(block), step.model.latents.atoms), bool)

    def raised(self, latents: Latents, most: int) -> "Scheme | None":
        """The scheme with one more active atom; None if there is none, or with more than ``most`` states."""
        return None
