"""States that are listed or drawn for each point, against sums over them one by one."""

import numpy as np

from parallel_et.core.latent_states import states_of_binary
from parallel_et.core.posterior import Draws, Listed, Sparse, weigh


def test_listed_states_have_the_means_pairs_and_best_of_their_weights():
    rng = np.random.default_rng(1)
    states = np.array([[rng.permutation(6)[:3] for _ in range(5)] for _ in range(7)], np.int32)
    states[rng.random(states.shape) < 0.3] = -1
    logs = rng.normal(0, 3, (7, 5))
    logs[2, 1] = -np.inf
    evidence, q = weigh(logs, 0.5)
    np.testing.assert_allclose(evidence, np.log(np.exp(0.5 * logs).sum(1)), rtol=1e-12)
    posterior = Listed(evidence, states, Sparse.of(q))
    used = np.arange(7) % 2 == 0
    point, found, weight = posterior.pairs(used)
    expected = [(n, k) for n in range(0, 7, 2) for k in range(5) if q[n, k] > 0]
    assert point.tolist() == [n for n, _ in expected]
    np.testing.assert_array_equal(found, [states[n, k] for n, k in expected])
    np.testing.assert_array_equal(weight, [q[n, k] for n, k in expected])
    means = [[sum(q[n, k] for k in range(5) if h in states[n, k]) for h in range(6)] for n in range(7)]
    np.testing.assert_allclose(posterior.means(6), means, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(posterior.best(), states[np.arange(7), q.argmax(1)])
    assert posterior.nbytes > states.nbytes


def test_draws_have_the_means_pairs_and_best_of_their_states_and_values():
    rng = np.random.default_rng(2)
    n, K, atoms = 9, 12, 4
    states = states_of_binary(rng.random((n * K, atoms)) < 0.4).reshape(n, K, -1)
    values, q = rng.normal(1, 2, states.shape), rng.dirichlet(np.ones(K), n)
    q[0] = 1 / K  # of equal draws the state that is there most often
    q[3, 5] = 0.0
    posterior = Draws(np.zeros(n), states, Sparse.of(q), values)
    used = np.arange(n) % 3 == 0
    expected = [(i, k) for i in range(0, n, 3) for k in range(K) if q[i, k] > 0]
    point, found, weight = posterior.pairs(used)
    assert point.tolist() == [i for i, _ in expected]
    np.testing.assert_array_equal(found, [states[i, k] for i, k in expected])
    np.testing.assert_array_equal(weight, [q[i, k] for i, k in expected])
    np.testing.assert_array_equal(posterior.drawn(used), [values[i, k] for i, k in expected])

    means, best = np.zeros((n, atoms)), []
    for i in range(n):
        total = {}
        for k in range(K):
            total[tuple(states[i, k])] = total.get(tuple(states[i, k]), 0.0) + q[i, k]
            for h, z in zip(states[i, k], values[i, k], strict=True):
                if h >= 0:
                    means[i, h] += q[i, k] * z
        best.append(max(total, key=total.get))
    np.testing.assert_allclose(posterior.means(atoms), means, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(posterior.best(), best)
    assert [tuple(states[i, q[i].argmax()]) for i in range(n)] != best  # which takes all draws of a state
    assert posterior.nbytes > states.nbytes + values.nbytes
