"""Weights of states that are listed for each point, against sums over them one by one."""

import numpy as np

from parallel_et.core.posterior import Listed, Sparse, weigh


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
