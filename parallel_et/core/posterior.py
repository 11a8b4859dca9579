"""Posteriors of a block of points: as weights of states, as draws, or as moments where a model needs no more."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parallel_et.core.latent_states import Table, in_front, valued
from parallel_et.kernels import truncated


class Sparse(NamedTuple):
    """Rows of which few entries are not negligible: where each row starts (n + 1,), columns and values of all."""

    start: np.ndarray
    column: np.ndarray
    value: np.ndarray

    @classmethod
    def of(cls, table: np.ndarray) -> "Sparse":
        """What is not negligible of a table (n, m)."""
        return cls(*truncated.significant(np.ascontiguousarray(table)))

    @property
    def row(self) -> np.ndarray:
        """The row of each entry."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    def within(self, used: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Row, column and value of each entry of the used rows, (n,) bool."""
        row = self.row
        some = used[row]
        return row[some], self.column[some], self.value[some]

    def dense(self, width: int) -> np.ndarray:
        """The rows with zeros where nothing is kept, (n, width)."""
        table = np.zeros((len(self.start) - 1, width))
        table[self.row, self.column] = self.value
        return table

    def heaviest(self) -> tuple[np.ndarray, np.ndarray]:
        """Column and value of the largest entry of each row, of equal ones the first; -1 and 0 for empty rows; (n,)."""
        best, weight = np.empty(len(self.start) - 1, np.int32), np.empty(len(self.start) - 1)
        truncated.heaviest(*self, best, weight)
        return best, weight


class Pairs(NamedTuple):
    """Points and states that matter for them: the point's number (m,), the state (m, g) and its weight (m,)."""

    point: np.ndarray
    states: np.ndarray
    q: np.ndarray


@dataclass(frozen=True)
class Posterior(ABC):
    """What is known of the hidden states of n points; ``evidence`` is F_n, (n,)."""

    evidence: np.ndarray

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        parts = [part for value in vars(self).values() for part in (value if isinstance(value, Sparse) else (value,))]
        return sum(part.nbytes for part in parts if isinstance(part, np.ndarray))

    @abstractmethod
    def means(self, atoms: int) -> np.ndarray:
        """<s_h> of each atom, (n, atoms): the probability that it is active, where it has no value of its own."""

    def active(self, atoms: int) -> np.ndarray:
        """The probability that each atom is active, (n, atoms)."""
        return self.means(atoms)

    def variances(self, atoms: int) -> np.ndarray:
        """The variance of s_h of each atom, (n, atoms)."""
        active = self.active(atoms)
        return active * (1 - active)


@dataclass(frozen=True)
class Weights(Posterior):
    """Weights of states."""

    @abstractmethod
    def pairs(self, used: np.ndarray) -> Pairs:
        """All states that matter of the used points, (n,) bool."""

    @abstractmethod
    def best(self) -> np.ndarray:
        """The state of most weight, of equal ones the first, (n, g)."""

    def means(self, atoms: int) -> np.ndarray:
        point, states, q = self.pairs(np.ones(len(self.evidence), bool))
        total = np.zeros((len(self.evidence), atoms + 1))  # what is padded goes to the last column
        np.add.at(total, (point[:, None], states), q[:, None])
        return total[:, :atoms]


@dataclass(frozen=True)
class Listed(Weights):
    """Weights of states that are listed for each point.

    Attributes
    ----------
    states : (n, K, g)
    q : their weights
    """

    states: np.ndarray
    q: Sparse

    def pairs(self, used: np.ndarray) -> Pairs:
        row, index, q = self.q.within(used)
        return Pairs(row, self.states[row, index], q)

    def best(self) -> np.ndarray:
        return self.states[np.arange(len(self.states)), self.q.heaviest()[0]]


@dataclass(frozen=True)
class ListedErrors(Listed):
    """Listed states with the expected squared residual of each point, ``errors`` (n,) = <|y_n - W s|^2>."""

    errors: np.ndarray


@dataclass(frozen=True)
class Draws(Listed):
    """States that were drawn for each point, equal ones maybe several times, with values of their active atoms.

    Attributes
    ----------
    values : (n, K, g), of the atoms in ``states``; any number where there is none
    """

    values: np.ndarray

    def drawn(self, used: np.ndarray) -> np.ndarray:
        """The values of the states that ``pairs`` has, (m, g)."""
        row, index, _ = self.q.within(used)
        return self.values[row, index]

    def means(self, atoms: int) -> np.ndarray:
        return self._mean_power(1, atoms)

    def active(self, atoms: int) -> np.ndarray:
        return super().means(atoms)

    def variances(self, atoms: int) -> np.ndarray:
        return np.maximum(self._mean_power(2, atoms) - self.means(atoms) ** 2, 0.0)

    def _mean_power(self, power: int, atoms: int) -> np.ndarray:
        everything = np.ones(len(self.evidence), bool)
        point, states, q = self.pairs(everything)
        values = valued(states, self.drawn(everything), atoms) ** power
        return sum_rows(point, q[:, None] * values, len(self.evidence))

    def best(self) -> np.ndarray:
        """The state of most weight in all its draws, whatever their values; of equal ones the first, (n, g)."""
        point, states, q = self.pairs(np.ones(len(self.evidence), bool))
        rows = np.column_stack([point, states])
        _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        weight = np.bincount(which.reshape(-1), q)
        ranked = first[np.lexsort([first, -weight, point[first]])]
        return states[ranked[np.unique(point[ranked], return_index=True)[1]]]


@dataclass(frozen=True)
class Tabled(Weights):
    """Weights of the states of one table over each point's candidates, and of single atoms outside these.

    Attributes
    ----------
    candidates : (n, H') int32, in rising order
    table : of the states, the same for all points
    q : weights of its states over the candidates
    alone : weights of the states with one atom outside the candidates
    """

    candidates: np.ndarray
    table: Table
    q: Sparse
    alone: Sparse

    def pairs(self, used: np.ndarray) -> Pairs:
        (row, index, q), (single, atom, alone) = self.q.within(used), self.alone.within(used)
        inside = self.table.chosen(self.candidates[row], index)
        outside = only(atom, inside.shape[1])
        return Pairs(np.concatenate([row, single]), np.concatenate([inside, outside]), np.concatenate([q, alone]))

    def best(self) -> np.ndarray:
        (chosen, weight), (outside, single) = self.q.heaviest(), self.alone.heaviest()
        return best_of(self.table.chosen(self.candidates, chosen), outside, single > weight)


@dataclass(frozen=True)
class Moments(Posterior):
    """First and second moments of the causes, which is all that a linear model needs.

    Attributes
    ----------
    candidates : (n, H') int32, in rising order
    moments : (H' (H' + 1) / 2, n) <s_i s_j> of the candidates i <= j at row j (j + 1) / 2 + i
    norms : (n,) |y_n|^2
    errors : (n,) <|y_n - W s|^2>
    alone : weights of the states with one cause outside the candidates
    """

    candidates: np.ndarray
    moments: np.ndarray
    norms: np.ndarray
    errors: np.ndarray
    alone: Sparse

    def means(self, atoms: int) -> np.ndarray:
        means, i = self.alone.dense(atoms), np.arange(self.candidates.shape[1])
        np.put_along_axis(means, self.candidates, self.moments[i * (i + 1) // 2 + i].T, 1)
        return means


class Alone(NamedTuple):
    """Causes with values that are the only ones of a state, of a few points: weights, means and second moments."""

    weight: Sparse
    mean: np.ndarray
    square: np.ndarray


@dataclass(frozen=True)
class ValueMoments(Posterior):
    """First and second moments of causes that have values, under the posterior of what is active and of the values.

    Attributes
    ----------
    candidates : (n, H') int32, in any order; one may be there again if it adds nothing more
    chance : (H', n) the probability that each of them is active
    values : (H', n) <s_i>
    moments : (H' (H' + 1) / 2, n) <s_i s_j> of the candidates i <= j at row j (j + 1) / 2 + i
    alone : of the states with one cause outside the candidates; the moments are of s, not given that it is active
    found : (n, g) the most probable state
    errors : (n,) <|y_n - W s|^2>
    """

    candidates: np.ndarray
    chance: np.ndarray
    values: np.ndarray
    moments: np.ndarray
    alone: Alone
    found: np.ndarray
    errors: np.ndarray

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(part.nbytes for part in (*self.alone.weight, self.alone.mean, self.alone.square))

    def means(self, atoms: int) -> np.ndarray:
        return self._by_atom(self.values, self.alone.mean, atoms)

    def active(self, atoms: int) -> np.ndarray:
        return self._by_atom(self.chance, self.alone.weight.value, atoms)

    def variances(self, atoms: int) -> np.ndarray:
        i = np.arange(self.candidates.shape[1])
        squares = self._by_atom(self.moments[i * (i + 1) // 2 + i], self.alone.square, atoms)
        return np.maximum(squares - self.means(atoms) ** 2, 0.0)

    def best(self) -> np.ndarray:
        """The most probable state, (n, g)."""
        return self.found

    def _by_atom(self, inside: np.ndarray, outside: np.ndarray, atoms: int) -> np.ndarray:
        """What candidates (H', n) and causes alone have, at the place of each; (n, atoms)."""
        n, (start, cause, _) = len(self.evidence), self.alone.weight
        row = np.repeat(np.arange(n), np.diff(start))
        table = np.zeros((n, atoms))
        np.add.at(table, (np.arange(n)[:, None], self.candidates), inside.T)
        np.add.at(table, (row, cause), outside)
        return table


@dataclass(frozen=True)
class TabledMoments(Moments):
    """Moments under the weights of all states of a ``table`` over the candidates."""

    table: Table


@dataclass(frozen=True)
class SampledMoments(Moments):
    """Moments of states that were drawn; ``found`` (n, H') bool is the best of all that were visited."""

    found: np.ndarray

    def best(self) -> np.ndarray:
        """The best state, (n, g)."""
        return in_front(self.candidates, self.found, -1)


def weigh(logs: np.ndarray, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """Return F_n = log sum p^beta, (n,), and weights q ~ p^beta that sum to 1, from log joints (n, K)."""
    scaled = beta * logs
    peak = scaled.max(1, keepdims=True)
    with np.errstate(invalid="ignore"):  # where the evidence is not finite, which is refused
        weights = np.exp(scaled - peak)
    total = weights.sum(1, keepdims=True)
    return (peak + np.log(total))[:, 0], weights / total


def only(atoms: np.ndarray, width: int) -> np.ndarray:
    """States with a single atom each, (m,) -> (m, width)."""
    states = np.full((len(atoms), width), -1, np.int32)
    states[:, 0] = atoms
    return states


def best_of(states: np.ndarray, atoms: np.ndarray, alone: np.ndarray) -> np.ndarray:
    """The states (n, g), but for those points where a single atom ``alone`` (n,) is better."""
    return np.where(alone[:, None], only(atoms, states.shape[1]), states)


def sum_rows(point: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """The rows of values (m, ...) added up by point (m,); (count, ...)."""
    total = np.zeros((count, *values.shape[1:]))
    np.add.at(total, point, values)
    return total
