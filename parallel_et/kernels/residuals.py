"""Expected squared residuals <|y - W s|^2> of linear models, from products with fields."""

from parallel_et.kernels import kernel


@kernel(
    "void(float64[::1], float64[:,::1], float64[::1], float64[:,::1], float64[:,::1], int32[:,::1], float64[:,::1], "
    "float64[:,::1], float64[::1])"
)
def errors_of_moments(norms, products, squares, gram, pairs, candidates, means, moments, errors):
    """Compute errors[n] = |y_n|^2 - 2 <s>^T W^T y_n + sum_ij G_ij <s_i s_j> over the candidates, with G = W^T W.

    norms, errors : (n,) |y_n|^2 in, the expected squared residuals out
    products : (n, H') W^T y of the candidates
    squares : (H,) diagonal of G
    gram, pairs : (H, H) G, or (n, H' (H' - 1) / 2) as in ``linear.posterior``
    candidates, means : (n, H') causes, and (H', n) <s_i>
    moments : (H' (H' + 1) / 2, n) <s_i s_j> in row j (j + 1) / 2 + i, i <= j

    Costs H'^2 / 2 operations per point.
    """
    N, C = candidates.shape
    for n in range(N):
        errors[n] = norms[n]
    row = 0
    for j in range(C):
        for n in range(N):
            errors[n] -= 2.0 * means[j, n] * products[n, j]
        for i in range(j):
            for n in range(N):
                shared = pairs[n, j * (j - 1) // 2 + i] if pairs.shape[1] else gram[candidates[n, j], candidates[n, i]]
                errors[n] += 2.0 * shared * moments[row, n]
            row += 1
        for n in range(N):
            errors[n] += squares[candidates[n, j]] * moments[row, n]
        row += 1


@kernel(
    "void(float64[::1], float64[:,::1], float64[:,::1], int32[:,:,::1], int64[::1], int32[::1], float64[::1], "
    "float64[::1])"
)
def errors_of_states(norms, products, gram, states, start, state, weight, errors):
    """Compute errors[n] = sum_s q(s) |y_n - W s|^2 over the listed states of each point.

    norms, errors : (n,) |y_n|^2 in, the expected squared residuals out
    products, gram : (n, H) W^T y and (H, H) W^T W
    states : (n, K, g) listed states
    start, state, weight : (n + 1,), (m,), (m,) states with non-negligible weight, row by row

    Costs |s|^2 / 2 operations per state.
    """
    N, _, most = states.shape
    for n in range(N):
        errors[n] = 0.0
        for k in range(start[n], start[n + 1]):
            error = norms[n]
            for i in range(most):
                h = states[n, state[k], i]
                if h < 0:
                    break
                error += gram[h, h] - 2.0 * products[n, h]
                for j in range(i):
                    error += 2.0 * gram[h, states[n, state[k], j]]
            errors[n] += weight[k] * error
