"""Objects at any place: causes that represent them, errors of their places, and the picture."""

import numpy as np
from problems import job_table, problem_of

from parallel_et.inference.recovery import causes_of, objects_by_cause
from parallel_et.papers.anywhere import PlacesOutcome, draw_outcomes, nearest_distances

GRID, SIZE = (4, 4), 2


def test_a_second_cause_of_an_object_represents_it_and_an_unlike_cause_represents_none():
    T = np.array([[1.0, 0.5, 0.3, 0.8], [0.2, 1.0, 0.9, 0.1]]).T  # two objects of 2 x 2 pixels
    model_of = {"name": "inveca", "causes": 4, "size": SIZE, "channels": 1}
    problem, _ = problem_of(job_table(model_of, {"candidates": 2, "gamma": 1}), np.zeros((5, 16)))
    params = {
        "W": np.full((4, 4), 0.999),
        "T": np.stack([T[:, 1], T[:, 0], T[:, 0] + 0.05, np.full(4, 3.0)], 1),  # the third is a twin, the last neither
        "sigma": np.array(0.1),
        "pi": np.array(0.2),
    }
    objects = causes_of({"W": np.ones((4, 2)), "T": T}, 16)
    like, place = objects_by_cause(problem.model, problem.scheme, params, objects)
    np.testing.assert_array_equal(like, [[False, True, True, False], [True, False, False, False]])
    np.testing.assert_array_equal(place[like], 0)


def test_the_distance_of_an_object_is_that_of_its_nearest_cause():
    none = (-1, -1)
    found = np.array([[(0, 0), (3, 0), none, (1, 1)], [none, none, none, (1, 1)]])  # (n, H, 2)
    corners = np.array([[(1, 1), (0, 0)], [(1, 1), (0, 0)]])  # (n, b, 2)
    like = np.array([[True, True, False, False], [False, True, True, False]])
    gaps = nearest_distances(found, corners, like, np.zeros((2, 4, 2), int), GRID)
    np.testing.assert_array_equal(gaps, [[1, 1], [-1, -1]])  # the places go round; who stands for nothing is not asked


def test_all_variants_have_the_bar_of_missed_objects_at_the_same_place():
    some = PlacesOutcome(2, 2, np.array([0, 1, -1]), np.array([0, 7, -1]), 0.1, np.zeros(3), 1.0)
    other = some._replace(selected=np.array([0, 7, -1]))
    bars, _ = draw_outcomes({"one": [some, some], "other": [other]}).axes
    lasts = [max(bar.get_x() + bar.get_width() / 2 for bar in kind) for kind in bars.containers]
    np.testing.assert_allclose(lasts, [9 - 0.2, 9 + 0.2])
