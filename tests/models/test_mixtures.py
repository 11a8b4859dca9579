"""Mixtures against their definition and against scikit-learn, and the rise of their free energy."""

import h5py
import numpy as np
import pytest
from mpi4py import MPI
from problems import iterate, problem_of
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, poisson
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture

from parallel_et import fit
from parallel_et.core.posterior import Listed, Sparse
from parallel_et.core.random import stream
from parallel_et.core.types import Block, Settings
from parallel_et.em.e_step import inference_context
from parallel_et.errors import UserError
from parallel_et.inference.posterior import Inference
from parallel_et.job.job import check_job
from parallel_et.kernels.rows import pad_rows
from parallel_et.models.components import mixture
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.setup import open_source

N, D, C = 60, 5, 4
COVARIANCES = ("spherical", "diagonal", "full", "tied")
KINDS = {**{kind: {"name": "gmm", "covariance": kind} for kind in COVARIANCES}, "poisson": {"name": "pmm"}}
SCHEMES = {
    "exact": ({"scheme": "exact"}, C),
    "et": ({"candidates": 2}, 2),
    "et with all alone": ({"candidates": 2, "singletons": True}, C),
}


def table_of(kind, inference, **model):
    return {
        "model": {"causes": C, **KINDS[kind], **model},
        "data": {"source": "array:given"},
        "inference": inference,
        "anneal": {"iterations": 3},
    }


def case(kind, seed=1):
    """Return parameters, and points drawn from similar parameters."""
    rng = np.random.default_rng(seed)
    pi, truth = rng.dirichlet(np.full(C, 5.0)), rng.integers(C, size=N)
    if kind == "poisson":
        W = rng.gamma(2.0, 3.0, (D, C))
        return {"W": np.asfortranarray(W), "pi": pi}, rng.poisson(W.T[truth] + 1.0).astype(float)
    W = rng.normal(0, 2, (D, C))
    Y = W.T[truth] + rng.normal(size=(N, D)) @ rng.normal(size=(D, D))
    roots = 0.3 * rng.normal(size=(C, D, D)) + 2 * np.eye(D)
    full = roots @ roots.transpose(0, 2, 1)
    diagonal = np.diagonal(full, axis1=1, axis2=2)
    var = {"spherical": diagonal[:, 0], "diagonal": diagonal.T, "full": full, "tied": full[:1]}[kind]
    return {"W": np.asfortranarray(W), "var": np.asfortranarray(var), "pi": pi}, Y


def matrices(kind, var):
    """Return the covariances of all clusters, (C, D, D)."""
    if kind in ("full", "tied"):
        return np.broadcast_to(var, (C, D, D))
    return np.array([np.diag(np.broadcast_to(v, D)) for v in np.atleast_2d(var.T).reshape(C, -1)])


def log_joints(kind, params, Y):
    """Return the log joints (N, C) from densities of scipy."""
    if kind == "poisson":
        noise = [poisson.logpmf(Y, w).sum(1) for w in params["W"].T]
    else:
        of = zip(params["W"].T, matrices(kind, params["var"]), strict=True)
        noise = [multivariate_normal.logpdf(Y, w, cov) for w, cov in of]
    return np.stack(noise, 1) + np.log(params["pi"])


def new_params(kind, Y, q, reg):
    """Return the parameters of the textbook M-step."""
    weight = q.sum(0)
    W = Y.T @ q / weight
    if kind == "poisson":
        return {"W": W, "pi": weight / len(Y)}
    gaps = Y[:, None] - W.T
    full = np.einsum("nc,ncd,nce->cde", q, gaps, gaps) / weight[:, None, None] + reg * np.eye(D)
    diagonal = np.diagonal(full, axis1=1, axis2=2)
    tied = np.einsum("c,cde->de", weight / weight.sum(), full)[None]
    var = {"spherical": diagonal.mean(1), "diagonal": diagonal.T, "full": full, "tied": tied}[kind]
    return {"W": W, "var": var, "pi": weight / len(Y)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("temperature, points", [(1.0, N), (3.0, 41)])
def test_an_iteration_equals_its_definition(kind, scheme, temperature, points):
    params, Y = case(kind)
    inference, kept = SCHEMES[scheme]
    problem, _ = problem_of(table_of(kind, inference, **({} if kind == "poisson" else {"reg": 0.01})), Y)
    assert problem.scheme.max_active == 1
    logs = log_joints(kind, params, Y) / temperature
    logs = np.where(logs >= np.sort(logs)[:, [-kept]], logs, -np.inf)
    F = logsumexp(logs, axis=1)
    M = np.sort(np.argsort(-F)[:points])
    settings = Settings(0, temperature, float(points < N), points, {}, {}, 1)
    new, info = iterate(problem, Ranks(), params, settings)
    assert info.free_energy == pytest.approx(F.mean(), rel=1e-12)
    for name, value in new_params(kind, Y[M], np.exp(logs - F[:, None])[M], 0.01).items():
        np.testing.assert_allclose(new[name], value, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_inferred_equals_its_definition(kind):
    params, Y = case(kind, seed=2)
    problem, _ = problem_of(table_of(kind, {"candidates": 3}), Y)
    logs = log_joints(kind, params, Y)
    some = np.where(logs >= np.sort(logs)[:, [-3]], logs, -np.inf)
    q = np.exp(some - logsumexp(some, axis=1)[:, None])
    what = ("candidates", "means", "map", "reconstruction", "quality")
    found = Inference(problem.model, problem.scheme, params, what).block(Y)
    assert found["candidates"].tolist() == np.sort(np.argsort(-logs)[:, :3]).tolist()
    assert found["map"].argmax(1).tolist() == logs.argmax(1).tolist()
    np.testing.assert_allclose(found["means"], q, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(found["reconstruction"], q @ params["W"].T, rtol=1e-10)
    share = np.exp(logsumexp(some, axis=1) - logsumexp(logs, axis=1))
    np.testing.assert_allclose(found["quality"], share, rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_joints_of_listed_clusters_and_sums_under_them_are_those_of_a_table(kind):
    params, Y = case(kind, seed=3)
    problem, _ = problem_of(table_of(kind, {"candidates": 3}), Y)
    model, block = problem.model, Block(pad_rows(Y), D, 0)
    step = inference_context(model, problem.scheme, params)
    view = step.evaluator.observe(block)
    states = np.random.default_rng(4).integers(-2, C, (N, 6, 1)).astype(np.int32)
    logs = log_joints(kind, params, Y)
    expected = np.where(states[..., 0] < 0, -np.inf, np.take_along_axis(logs, np.maximum(states[..., 0], 0), 1))
    np.testing.assert_allclose(view.log_joint(states), expected, rtol=1e-12)
    np.testing.assert_allclose(step.evaluator.log_joint(Y[:, None], np.arange(C)[:, None]), logs, rtol=1e-12)
    np.testing.assert_allclose(view.log_singletons(), logs, rtol=1e-12)
    tabled, _ = problem.scheme.infer(step, block, {})
    order = np.random.default_rng(5).permuted(np.tile(np.arange(3), (N, 1)), axis=1)
    q = np.take_along_axis(tabled.q.dense(3), order, 1)
    clusters = np.take_along_axis(tabled.candidates, order, 1)
    listed = Listed(tabled.evidence, np.ascontiguousarray(clusters[..., None]), Sparse.of(q))
    sums = []
    for posterior in (tabled, listed):
        (total,) = problem.sums(model, "all", params)
        view.accumulate("all", posterior, np.arange(N) % 3 > 0, total)
        total.check()
        sums.append(total.on_root(Ranks()))
    for name, value in sums[0].items():
        assert value.tobytes() == sums[1][name].tobytes(), name


def start_file(path, params):
    with h5py.File(path, "w") as file:
        for name, value in params.items():
            file[name] = value
    return {name: {"file": str(path)} for name in params}


@pytest.mark.parametrize("kind", COVARIANCES)
@pytest.mark.parametrize("reg", [1e-6, 0.3])
def test_exact_inference_learns_what_scikit_learn_does(kind, reg, tmp_path):
    rng = np.random.default_rng(6)
    params, _ = case(kind, seed=6)
    Y = (
        50
        + 3 * rng.normal(size=(C, D))[rng.integers(C, size=500)]
        + rng.normal(size=(500, D)) @ rng.normal(size=(D, D))
    )
    params["W"] = Y[rng.choice(500, C, replace=False)].T
    inverse = {"spherical": 1 / params["var"], "diagonal": 1 / params["var"].T}
    precisions = inverse[kind] if kind in inverse else np.linalg.inv(params["var"])
    theirs = GaussianMixture(
        C,
        covariance_type="diag" if kind == "diagonal" else kind,
        weights_init=params["pi"],
        means_init=params["W"].T,
        precisions_init=precisions[0] if kind == "tied" else precisions,
        reg_covar=reg,
        max_iter=12,
        tol=0.0,
    )
    with pytest.warns(UserWarning, match="did not converge"):
        theirs.fit(Y)
    table = table_of(kind, {"scheme": "exact"}, reg=reg, init=start_file(tmp_path / "start.h5", params))
    ours = fit({**table, "anneal": {"iterations": 12}}, Y)
    assert ours.history["free_energy"][-1] == pytest.approx(theirs.lower_bound_, abs=1e-8)
    np.testing.assert_allclose(ours.params["W"].T, theirs.means_, atol=1e-8)
    np.testing.assert_allclose(ours.params["pi"], theirs.weights_, atol=1e-8)
    var = ours.params["var"].T if kind == "diagonal" else ours.params["var"]
    np.testing.assert_allclose(var[0] if kind == "tied" else var, theirs.covariances_, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", ["exact", "et"])
@pytest.mark.parametrize("learn", [None, ["W"], ["pi"], "the rest"])
def test_the_free_energy_never_falls(kind, scheme, learn):
    _, Y = case(kind, seed=7)
    keys = {} if kind == "poisson" else {"reg": 0.0}
    if learn == "the rest":
        learn = ["pi"] if kind == "poisson" else ["var"]
    table = table_of(kind, SCHEMES[scheme][0], **keys, **({"learn": learn} if learn else {}))
    course = fit({**table, "anneal": {"iterations": 25}}, Y).history["free_energy"]
    assert course[-1] > course[0]
    assert (np.diff(course) >= -1e-9 * np.abs(course[1:])).all()


def test_the_poisson_m_step_is_where_its_objective_is_largest():
    params, Y = case("poisson", seed=8)
    problem, _ = problem_of(table_of("poisson", {"scheme": "exact"}), Y)
    new, _ = iterate(problem, Ranks(), params, Settings(0, 1.0, 0.0, N, {}, {}, 1))
    logs = log_joints("poisson", params, Y)
    q = np.exp(logs - logsumexp(logs, axis=1)[:, None])

    def loss(x):
        W, odds = np.exp(x[: D * C]).reshape(D, C), x[D * C :]
        found = {"W": W, "pi": np.exp(odds - logsumexp(odds))}
        return -(q * log_joints("poisson", found, Y)).sum() / N

    best = minimize(loss, np.zeros(D * C + C), options={"gtol": 1e-9})
    np.testing.assert_allclose(new["W"], np.exp(best.x[: D * C]).reshape(D, C), rtol=1e-4)
    np.testing.assert_allclose(new["pi"], np.exp(best.x[D * C :] - logsumexp(best.x[D * C :])), rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cluster_without_points_keeps_its_values(kind):
    params, Y = case(kind, seed=9)
    params["W"][:, 2] = 1e4
    problem, _ = problem_of(table_of(kind, {"scheme": "exact"}), Y)
    new, info = iterate(problem, Ranks(), params, Settings(0, 1.0, 0.0, N, {}, {}, 1))
    np.testing.assert_array_equal(new["W"][:, 2], 1e4)
    assert info.unused.tolist() == [False, False, True, False]
    assert 0 < new["pi"][2] < 1e-8
    if kind in ("spherical", "diagonal", "full"):
        of_it = (2,) if kind == "full" else (..., 2)
        np.testing.assert_array_equal(new["var"][of_it], params["var"][of_it])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 7, 90])
@pytest.mark.parametrize("near", [0.0, 1e-9, 1e-6])
def test_the_candidates_are_exactly_those_of_the_largest_joints(kind, count, near):
    """Use clusters whose joints are equal in single precision. Ties go to the lower index."""
    rng, H = np.random.default_rng(10), 90
    W = np.repeat(rng.gamma(3.0, 2.0, (D, H // 5)), 5, axis=1) * (1 + near * rng.normal(size=(D, H)))
    Y = rng.poisson(W.T[rng.integers(H, size=N)]).astype(float)
    scale = np.repeat(10.0 ** rng.uniform(-4, 1, H // 5), 5)
    var = {"spherical": scale, "diagonal": scale * rng.uniform(1, 2, (D, 1)), "tied": np.eye(D)[None] + 0.5}
    var["full"] = scale[:, None, None] * var["tied"]
    params = {"W": W, "pi": np.full(H, 1 / H)} | ({"var": var[kind]} if kind in var else {})
    problem, _ = problem_of({**table_of(kind, {"scheme": "exact"}, causes=H, init={"W": 1.0})}, Y)
    view = inference_context(problem.model, problem.scheme, params).evaluator.observe(Block(pad_rows(Y), D, 0))
    every = np.tile(np.arange(H, dtype=np.int32), (N, 1))
    logs = view.log_joint(every[..., None])
    if kind == "full":  # the reference uses the same operations for all points
        logs = view.log_singletons()
    expected = [sorted(np.lexsort((every[n], -logs[n]))[:count].tolist()) for n in range(N)]
    assert view.select(count).tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e12, 1e90, 0.0])
def test_data_of_any_size_give_numbers(kind, scale):
    Y = scale * np.random.default_rng(11).gamma(1.0, 1.0, (40, 3))
    table = table_of(kind, {"candidates": 2})
    with np.errstate(all="raise", under="ignore"):
        result = fit({**table, "anneal": {"iterations": 4}}, Y)
    assert np.isfinite(result.history["free_energy"]).all()


@pytest.mark.parametrize("kind", ["full", "tied"])
def test_points_in_a_plane_leave_positive_definite_covariances(kind):
    Y = np.random.default_rng(12).normal(size=(50, 2)) @ np.random.default_rng(13).normal(size=(2, 6))
    table = {**table_of(kind, {"scheme": "exact"}, reg=0.0), "anneal": {"iterations": 5, "noise": {"var": 0.1}}}
    result = fit(table, Y)
    assert np.isfinite(np.linalg.cholesky(result.params["var"])).all()
    assert np.isfinite(result.history["free_energy"]).all()


@pytest.mark.parametrize("kind", ["spherical", "diagonal", "full"])
@pytest.mark.parametrize("unit, offset", [(1.0, 0.0), (1e8, 0.0), (3600.0, 1.7e9)])
def test_a_cluster_of_one_point_stops_at_a_floor_that_has_the_unit_of_the_data(kind, unit, offset, tmp_path):
    rng = np.random.default_rng(16)
    Y = rng.normal(size=(40, D))
    Y[0] = 100.0
    start = np.array([Y[0], Y[1], Y[2], Y[3]]).T
    files = start_file(tmp_path / "start.h5", {"W": start * unit + offset})
    table = table_of(kind, {"scheme": "exact"}, reg=0.0, init=files)
    with pytest.warns(UserWarning, match="at their floor"):
        result = fit({**table, "anneal": {"iterations": 30, "temperature": 1.0}}, Y * unit + offset)
    found = np.diagonal(matrices(kind, result.params["var"])[0])
    floor = 2.0**-56 * Y.var(0)
    expected = np.full(D, floor.mean()) if kind == "spherical" else floor
    np.testing.assert_allclose(found / unit**2, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_points_that_are_drawn_are_those_of_the_model(kind, tmp_path):
    params, _ = case(kind, seed=14)
    with h5py.File(tmp_path / "p.h5", "w") as file:
        for name, value in params.items():
            file[f"params/{name}"] = value
    data = {"source": "model", "points": 20_000, "params": str(tmp_path / "p.h5"), "model": KINDS[kind]["name"]}
    source = open_source(check_job({**table_of(kind, {"candidates": 2}, causes=2), "data": data}))
    states = source.model.draw(params, np.random.default_rng(15), 20_000)[1][:, 0]
    np.testing.assert_allclose(np.bincount(states) / 20_000, params["pi"], atol=0.02)
    Y, cluster = source.read(0, 20_000), np.concatenate([s.argmax(1) for _, _, s in source.draw_groups(0, 20_000)])
    for c in range(C):
        own = Y[cluster == c]
        cov = np.diag(params["W"][:, c]) if kind == "poisson" else matrices(kind, params["var"])[c]
        width = 6 * np.sqrt(np.diag(cov).max() / len(own))
        np.testing.assert_allclose(own.mean(0), params["W"][:, c], atol=width)
        np.testing.assert_allclose(np.cov(own.T), cov, atol=0.15 * np.diag(cov).max())


def test_one_number_for_a_start_is_a_round_cluster():
    _, Y = case("full")
    for kind, expected in (("full", np.tile(2.5 * np.eye(D), (C, 1, 1))), ("diagonal", np.full((D, C), 2.5))):
        _, params = problem_of(table_of(kind, {"scheme": "exact"}, init={"var": 2.5, "pi": 0.7}), Y)
        np.testing.assert_array_equal(params["var"], expected)
        np.testing.assert_array_equal(params["pi"], np.full(C, 0.25))
    _, params = problem_of(table_of("tied", {"scheme": "exact"}), Y)
    np.testing.assert_allclose(params["var"], np.diag(Y.var(0))[None], rtol=1e-12)


def test_a_start_by_k_means_plus_plus_is_drawn_by_squared_distances():
    """Compare with the same draws in double precision. Each of several distant clusters has one initial mean."""
    rng = np.random.default_rng(16)
    Y = 100 * rng.normal(size=(C, D))[np.arange(N) % C] + rng.normal(size=(N, D))
    for seed in range(10):
        table = table_of("spherical", {"scheme": "exact"})
        _, params = problem_of({**table, "run": {"seed": seed}}, Y)
        draws = stream(seed, "rows.W")
        rows, gaps = [int(draws.integers(N))], np.full(N, np.inf)
        while len(rows) < C:
            gaps = np.minimum(gaps, ((Y - Y[rows[-1]]) ** 2).sum(1))
            rows.append(int(np.searchsorted(np.cumsum(gaps), draws.random() * gaps.sum())))
        np.testing.assert_array_equal(params["W"].T, Y[rows])
        assert sorted(row % C for row in rows) == list(range(C))
    _, params = problem_of(table, np.ones((N, D)))  # all distances are zero
    np.testing.assert_array_equal(params["W"], 1.0)


def test_k_means_plus_plus_takes_a_point_as_often_as_its_square_says():
    Y, second = np.array([[0.0], [1.0], [3.0]]), np.zeros(3)
    for seed in range(120):
        table = {**table_of("spherical", {"scheme": "exact"}, causes=2), "run": {"seed": seed}}
        W = problem_of(table, Y)[1]["W"][0]
        second += (W[0] == 0) * (Y[:, 0] == W[1])
    assert second[0] == 0
    assert second[2] / second.sum() == pytest.approx(0.9, abs=0.15)


def test_a_poisson_start_lies_between_points_and_their_mean():
    _, Y = case("poisson")
    _, params = problem_of(table_of("poisson", {"scheme": "exact"}), Y)
    rows = 2 * params["W"] - params["W"].mean(1, keepdims=True)
    assert all((np.abs(Y - row).max(1) < 1e-12).any() for row in rows.T)


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["spherical", "poisson"])
def test_a_start_is_the_same_on_any_number_of_ranks(kind):
    _, Y = case(kind, seed=17)
    table = table_of(kind, {"scheme": "exact"}, causes=11)
    alone, together = (problem_of(table, Y, Ranks(comm))[1] for comm in (MPI.COMM_SELF, MPI.COMM_WORLD))
    assert all(alone[name].tobytes() == together[name].tobytes() for name in alone)


@pytest.mark.parametrize(
    ("kind", "Y", "changes", "line"),
    [
        ("poisson", np.full((9, 3), -1.0), {}, "^data: expected counts for pmm, found 100.0% negative values$"),
        ("spherical", np.ones((3, 3)), {}, "rows: expected at least 4 points, one for each cause, found 3"),
        ("spherical", np.ones((9, 3)), {"covariance": "round"}, "model.covariance: expected 'spherical'"),
        (
            "spherical",
            np.ones((9, 3)),
            {"init": {"W": {"rows": "first"}}},
            "init.W.rows: expected 'random' or 'k-means",
        ),
        ("spherical", np.ones((9, 3)), {"name": "linca", "reg": 1.0}, "model.reg: unknown key"),
    ],
)
def test_wrong_jobs_and_data_are_refused_in_one_line(kind, Y, changes, line):
    with pytest.raises(UserError, match=line) as caught:
        problem_of(table_of(kind, {"scheme": "exact"}, **changes), Y)
    assert kind == "spherical" or "\n" not in str(caught.value)


def test_gamma_may_be_missing_only_where_the_model_bounds_the_active_causes():
    assert check_job(table_of("full", {"candidates": 2})).inference.gamma is None
    table = table_of("full", {"candidates": 2})
    with pytest.raises(UserError, match=r"^job: inference.gamma: expected a value, found none$"):
        check_job({**table, "model": {"name": "linca", "causes": 4}})


def test_truncation_to_a_few_clusters_loses_little_likelihood():
    rng = np.random.default_rng(18)
    W = rng.normal(0, 0.7, (60, 30))
    Y = W[rng.integers(60, size=3000)] + rng.normal(size=(3000, 30))
    table = table_of("spherical", {"candidates": 5}, causes=60)
    course = {}
    for name, inference in (("et", {"candidates": 5}), ("exact", {"scheme": "exact"})):
        learned = fit({**table, "inference": inference, "anneal": {"iterations": 15}}, Y)
        problem, _ = problem_of({**table, "inference": {"scheme": "exact"}}, Y)
        step = inference_context(problem.model, problem.scheme, learned.params)
        course[name] = problem.scheme.infer(step, Block(pad_rows(Y), 30, 0), {})[0].evidence.mean()
    assert course["et"] > course["exact"] - 0.01 * abs(course["exact"])


def test_single_precision_is_left_where_numbers_are_too_large():
    params, Y = case("spherical", seed=19)
    problem, _ = problem_of(table_of("spherical", {"candidates": 2}), Y)
    density = problem.model.density(params)
    assert density._upper is not None
    rows = pad_rows(Y)
    np.testing.assert_array_equal(
        density.most_probable(rows, 2), np.sort(np.argsort(-density.log_singletons(rows))[:, :2])
    )
    extreme = problem.model.density({**params, "var": np.full(C, 1e-40)})
    assert extreme._longest.max() > mixture.MAX_SINGLE_FACTOR
    assert extreme._upper is None
    np.testing.assert_array_equal(
        extreme.most_probable(rows, 2), np.sort(np.argsort(-extreme.log_singletons(rows))[:, :2])
    )


@pytest.mark.parametrize("seed", range(4))
def test_hard_em_on_round_clusters_of_one_size_and_weight_is_k_means(seed, tmp_path):
    rng = np.random.default_rng(seed)
    Y = 2.5 * rng.normal(size=(8, 5))[rng.integers(8, size=900)] + rng.normal(size=(900, 5))
    first = Y[rng.choice(900, 8, replace=False)]
    with h5py.File(tmp_path / "first.h5", "w") as file:
        file["W"] = first.T
    model = {
        "name": "gmm",
        "causes": 8,
        "learn": ["W"],
        "init": {"W": {"file": str(tmp_path / "first.h5")}, "var": 1.0},
    }
    job = table_of("spherical", {"scheme": "hard", "propose": {"select": 1}}) | {
        "model": model,
        "anneal": {"iterations": 200},
    }
    found = fit(job, Y)
    other = KMeans(8, init=first, n_init=1, max_iter=200, tol=0.0, algorithm="lloyd").fit(Y)
    np.testing.assert_allclose(found.params["W"].T, other.cluster_centers_, atol=1e-10)
    squares = 2 * 900 * (np.log(1 / 8) - 2.5 * np.log(2 * np.pi) - found.history["free_energy"][-1])
    assert squares == pytest.approx(other.inertia_, rel=1e-10)


def test_clusters_that_are_searched_through_their_neighbours_lose_little_likelihood():
    inference = {"exact": {"scheme": "exact"}, "tv": {"scheme": "tv", "states": 5, "propose": {"near": 5}}}
    table = table_of("spherical", {}) | {
        "model": {"name": "gmm", "causes": 60, "init": {"W": {"rows": "random"}}},
        "data": {"source": "clusters", "points": 4000, "clusters": 60, "dims": 6, "apart": 2.5},
        "anneal": {"iterations": 30},
        "run": {"seed": 5},
    }
    found = {name: fit({**table, "inference": keys}) for name, keys in inference.items()}
    assert (np.diff(found["tv"].history["free_energy"]) >= -1e-9 * 20).all()
    energy = [result.history["free_energy"][-1] for result in found.values()]
    assert energy[1] == pytest.approx(energy[0], rel=0.02)
