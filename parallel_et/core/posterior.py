"""Posteriors of a block of points: weights of states, draws, or moments."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parallel_et.core.latent_states import Table, pack_active, values_by_atom
from parallel_et.kernels import truncated


class Sparse(NamedTuple):
    """The non-negligible entries of a table, row by row.

    Attributes
    ----------
    start : (n + 1,) index of the first entry of each row
    column, value : (m,) columns and values of the entries
    """

    start: np.ndarray
    column: np.ndarray
    value: np.ndarray

    @classmethod
    def of(cls, table: np.ndarray) -> "Sparse":
        """Return the non-negligible entries of a table (n, columns)."""
        return cls(*truncated.significant(np.ascontiguousarray(table)))

    @property
    def row(self) -> np.ndarray:
        """The row of each entry."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    def within(self, used: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return row, column and value of each entry of the used rows, ``used`` (n,) bool."""
        row = self.row
        some = used[row]
        return row[some], self.column[some], self.value[some]

    def dense(self, width: int) -> np.ndarray:
        """Return the table with zeros for all other entries, (n, width)."""
        table = np.zeros((len(self.start) - 1, width))
        table[self.row, self.column] = self.value
        return table

    def heaviest(self) -> tuple[np.ndarray, np.ndarray]:
        """Return column and value of the largest entry of each row, (n,); -1 and 0 for empty rows."""
        best, weight = np.empty(len(self.start) - 1, np.int32), np.empty(len(self.start) - 1)
        truncated.heaviest(*self, best, weight)
        return best, weight


class Pairs(NamedTuple):
    """Pairs of a point and a state with non-negligible weight: row of the point (m,), state (m, g), weight (m,)."""

    point: np.ndarray
    states: np.ndarray
    q: np.ndarray


@dataclass(frozen=True)
class Posterior(ABC):
    """The posterior of the hidden states of n points; ``evidence`` is F_n, (n,)."""

    evidence: np.ndarray

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        parts = [part for value in vars(self).values() for part in (value if isinstance(value, Sparse) else (value,))]
        return sum(part.nbytes for part in parts if isinstance(part, np.ndarray))

    @abstractmethod
    def means(self, atoms: int) -> np.ndarray:
        """Return <s_h> of each atom, (n, atoms): the probability that the atom is active, if atoms have no values."""

    def active(self, atoms: int) -> np.ndarray:
        """Return the probability that each atom is active, (n, atoms)."""
        return self.means(atoms)

    def variances(self, atoms: int) -> np.ndarray:
        """Return the variance of s_h of each atom, (n, atoms)."""
        active = self.active(atoms)
        return active * (1 - active)


@dataclass(frozen=True)
class Weights(Posterior):
    """Weights of states."""

    @abstractmethod
    def pairs(self, used: np.ndarray) -> Pairs:
        """Return all states with non-negligible weight of the used points, ``used`` (n,) bool."""

    @abstractmethod
    def best(self) -> np.ndarray:
        """Return the state with the largest weight, the first in case of ties, (n, g)."""

    def means(self, atoms: int) -> np.ndarray:
        point, states, q = self.pairs(np.ones(len(self.evidence), bool))
        total = np.zeros((len(self.evidence), atoms + 1))  # padding, -1, is added to the last column
        np.add.at(total, (point[:, None], states), q[:, None])
        return total[:, :atoms]


@dataclass(frozen=True)
class Listed(Weights):
    """Weights of states that are listed for each point.

    Attributes
    ----------
    states : (n, K, g)
    q : weights of the states
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
    """States that were drawn for each point, with values of their active atoms. A state may be repeated.

    Attributes
    ----------
    values : (n, K, g) values of the atoms in ``states``; arbitrary for padding
    """

    values: np.ndarray

    def drawn(self, used: np.ndarray) -> np.ndarray:
        """Return the values of the states that ``pairs`` returns, (m, g)."""
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
        values = values_by_atom(states, self.drawn(everything), atoms) ** power
        return sum_rows(point, q[:, None] * values, len(self.evidence))

    def best(self) -> np.ndarray:
        """Return the state with the largest total weight over its draws, the first in case of ties, (n, g)."""
        point, states, q = self.pairs(np.ones(len(self.evidence), bool))
        rows = np.column_stack([point, states])
        _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        weight = np.bincount(which.reshape(-1), q)
        ranked = first[np.lexsort([first, -weight, point[first]])]
        return states[ranked[np.unique(point[ranked], return_index=True)[1]]]


@dataclass(frozen=True)
class Tabled(Weights):
    """Weights of the states of one table over the candidates of each point, and of single atoms outside the candidates.

    Attributes
    ----------
    candidates : (n, H') int32, in rising order
    table : table of states, the same for all points
    q : weights of the states of the table over the candidates
    singletons : weights of the states with one atom outside the candidates
    """

    candidates: np.ndarray
    table: Table
    q: Sparse
    singletons: Sparse

    def pairs(self, used: np.ndarray) -> Pairs:
        row, index, q = self.q.within(used)
        single_row, atom, single_q = self.singletons.within(used)
        inside = self.table.states_at(self.candidates[row], index)
        states = np.concatenate([inside, single_atom_states(atom, inside.shape[1])])
        return Pairs(np.concatenate([row, single_row]), states, np.concatenate([q, single_q]))

    def best(self) -> np.ndarray:
        index, weight = self.q.heaviest()
        atom, single_weight = self.singletons.heaviest()
        return better_states(self.table.states_at(self.candidates, index), atom, single_weight > weight)


@dataclass(frozen=True)
class Moments(Posterior):
    """First and second moments of the causes: sufficient for the M-step of a linear model.

    Attributes
    ----------
    candidates : (n, H') int32, in rising order
    moments : (H' (H' + 1) / 2, n) <s_i s_j> of the candidates i <= j at row j (j + 1) / 2 + i
    norms : (n,) |y_n|^2
    errors : (n,) <|y_n - W s|^2>
    singletons : weights of the states with one cause outside the candidates
    """

    candidates: np.ndarray
    moments: np.ndarray
    norms: np.ndarray
    errors: np.ndarray
    singletons: Sparse

    def means(self, atoms: int) -> np.ndarray:
        means, i = self.singletons.dense(atoms), np.arange(self.candidates.shape[1])
        np.put_along_axis(means, self.candidates, self.moments[i * (i + 1) // 2 + i].T, 1)
        return means


class Singletons(NamedTuple):
    """States with a single cause that has a value: weights, and for each entry the mean and the second moment."""

    weight: Sparse
    mean: np.ndarray
    square: np.ndarray


@dataclass(frozen=True)
class ValueMoments(Posterior):
    """First and second moments of causes that have values, under the joint posterior of states and values.

    Attributes
    ----------
    candidates : (n, H') int32, in any order; the moments of a repeated candidate are 0
    probability : (H', n) probability that each candidate is active
    values : (H', n) <s_i>
    moments : (H' (H' + 1) / 2, n) <s_i s_j> of the candidates i <= j at row j (j + 1) / 2 + i
    singletons : states with one cause outside the candidates; the moments are of s, not given that it is active
    best_states : (n, g) the most probable states
    errors : (n,) <|y_n - W s|^2>
    """

    candidates: np.ndarray
    probability: np.ndarray
    values: np.ndarray
    moments: np.ndarray
    singletons: Singletons
    best_states: np.ndarray
    errors: np.ndarray

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(
            part.nbytes for part in (*self.singletons.weight, self.singletons.mean, self.singletons.square)
        )

    def means(self, atoms: int) -> np.ndarray:
        return self._by_atom(self.values, self.singletons.mean, atoms)

    def active(self, atoms: int) -> np.ndarray:
        return self._by_atom(self.probability, self.singletons.weight.value, atoms)

    def variances(self, atoms: int) -> np.ndarray:
        i = np.arange(self.candidates.shape[1])
        squares = self._by_atom(self.moments[i * (i + 1) // 2 + i], self.singletons.square, atoms)
        return np.maximum(squares - self.means(atoms) ** 2, 0.0)

    def best(self) -> np.ndarray:
        """Return the most probable state, (n, g)."""
        return self.best_states

    def _by_atom(self, inside: np.ndarray, outside: np.ndarray, atoms: int) -> np.ndarray:
        """Return a table (n, atoms) of the values of candidates (H', n) and of single causes."""
        n, (start, cause, _) = len(self.evidence), self.singletons.weight
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
    """Moments of states that were drawn; ``best_visited`` (n, H') bool is the best state that was visited."""

    best_visited: np.ndarray

    def best(self) -> np.ndarray:
        """Return the best visited state, (n, g)."""
        return pack_active(self.candidates, self.best_visited, -1)


def weigh(logs: np.ndarray, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """Return F_n = log sum p^beta, (n,), and normalised weights q ~ p^beta, (n, K), from log joints (n, K)."""
    scaled = beta * logs
    peak = scaled.max(1, keepdims=True)
    with np.errstate(invalid="ignore"):  # the E-step refuses evidence that is not finite
        weights = np.exp(scaled - peak)
    total = weights.sum(1, keepdims=True)
    return (peak + np.log(total))[:, 0], weights / total


def single_atom_states(atoms: np.ndarray, width: int) -> np.ndarray:
    """Return states with a single atom each, (m,) -> (m, width)."""
    states = np.full((len(atoms), width), -1, np.int32)
    states[:, 0] = atoms
    return states


def better_states(states: np.ndarray, atoms: np.ndarray, single_is_better: np.ndarray) -> np.ndarray:
    """Return the states (n, g), replaced by the single atom of a point (n,) if ``single_is_better`` (n,)."""
    return np.where(single_is_better[:, None], single_atom_states(atoms, states.shape[1]), states)


def sum_rows(point: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """Sum the rows of values (m, ...) by point (m,); (count, ...)."""
    total = np.zeros((count, *values.shape[1:]))
    np.add.at(total, point, values)
    return total
