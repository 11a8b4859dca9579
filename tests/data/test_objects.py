"""Scenes of objects from a folder of pictures: near objects hide far objects."""

import numpy as np
import pytest
from PIL import Image

from parallel_et.data.base import show_nearest
from parallel_et.data.objects import Objects, ObjectsOptions
from parallel_et.errors import UserError
from parallel_et.job.job import check_job


def picture(path, colour, size=8):
    """Write a picture of a disc of one colour on a transparent background."""
    y, x = np.mgrid[:size, :size] - (size - 1) / 2
    image = np.zeros((size, size, 4), np.uint8)
    image[x**2 + y**2 < size**2 / 4] = (*colour, 255)
    Image.fromarray(image).save(path)


@pytest.fixture
def folder(tmp_path):
    for name, colour in (("a", (255, 0, 0)), ("b", (0, 255, 0)), ("c", (51, 51, 255))):
        picture(tmp_path / f"{name}.png", colour)
    (tmp_path / "notes.txt").write_text("no picture")
    return tmp_path


def source(folder, points=300, seed=3, **options):
    options = {"grid": 7, "size": 4, "probability": 0.5, "sigma": 0.0, **options}
    return Objects(ObjectsOptions(points=points, folder=str(folder), **options), seed, None)


def test_an_object_is_where_its_picture_is_opaque_all_in_its_mean_colour(folder):
    truth = source(folder).truth()
    assert truth["W"].shape == (49, 3)
    assert (truth["W"].sum(0) == 12).all()  # a disc without the corners of 4 x 4
    np.testing.assert_allclose(truth["T"].T, [[1, 0, 0], [0, 1, 0], [0.2, 0.2, 1]])
    assert truth["pi"].tolist() == [0.5] * 3
    assert len(source(folder, objects=2).truth()["pi"]) == 2


def test_every_pixel_of_a_scene_shows_one_object_that_is_there_or_none(folder):
    data = source(folder)
    points, s = data.group(0)
    truth = data.truth()
    scenes = points.reshape(len(points), 49, 3)
    hidden = set()
    for scene, active in zip(scenes, s, strict=True):
        for d, pixel in enumerate(scene):
            there = [h for h in np.flatnonzero(active) if truth["W"][d, h]]
            same = [h for h in there if (pixel == truth["T"][:, h]).all()]
            assert same or (not there and not pixel.any())
            hidden |= {(a, same[0]) for a in there if a != same[0]} if same else set()
    both = {(a, b) for a in range(3) for b in range(3) if a != b and (truth["W"][:, a] * truth["W"][:, b]).any()}
    assert hidden == both  # any two that overlap hide each other, now in this order, now in that
    assert both


def test_data_depend_on_the_seed_and_the_pictures_alone(folder):
    rows = source(folder, sigma=0.3).read(0, 300)
    assert (source(folder, sigma=0.3).read(100, 140) == rows[100:140]).all()
    assert source(folder, seed=4).version() != source(folder).version() == source(folder).version()
    picture(folder / "a.png", (200, 0, 0))
    assert (source(folder, sigma=0.3).read(0, 300) != rows).any()


def test_the_nearest_is_shown():
    masks, colours = np.array([[1, 1, 0], [0, 1, 1]], bool), np.array([[2.0], [3.0]])
    s, near = np.ones((2, 2), bool), np.array([[0.1, 0.2], [0.2, 0.1]])
    assert show_nearest(s, near, masks, colours).tolist() == [[2, 3, 3], [2, 2, 3]]
    assert show_nearest(s & [True, False], near, masks, colours).tolist() == [[2, 2, 0]] * 2


def test_what_is_no_folder_of_objects_is_refused_in_one_line(folder):
    with pytest.raises(UserError, match=r"data.folder: expected 9 PNG files, found 3 in"):
        source(folder, objects=9)
    with pytest.raises(UserError, match=r"data.folder: expected some PNG files, found no folder"):
        source(folder / "nowhere")
    (folder / "b.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"b.png: expected a PNG file, found"):
        source(folder).truth()
    picture(folder / "b.png", (0, 0, 0))
    with pytest.raises(
        UserError, match=r"b.png: expected an object with pixels that are neither transparent nor black"
    ):
        source(folder).truth()
    data = {"source": "objects", "points": 10, "folder": ".", "size": 50}
    with pytest.raises(UserError, match=r"data.size: expected at most data.grid = 35, found 50"):
        check_job({"model": {"name": "oca", "causes": 2}, "data": data, "inference": {"scheme": "exact"}})


def test_objects_anywhere_are_where_the_truth_says(folder):
    data = source(folder, places="anywhere")
    scenes, truth = data.scenes(0), data.truth()
    points, order = data.group(0)
    assert (points == scenes.points).all()
    assert ((order > 0) == (scenes.order > 0)).all()
    T, W = truth["T"].T.reshape(3, 4, 4, 3), truth["W"].T.reshape(3, 4, 4)
    assert (scenes.visible[order == 0] == 0).all()
    for n in range(60):
        image, owner = np.zeros((7, 7, 3)), np.full((7, 7), -1)
        for h in sorted(np.flatnonzero(order[n]), key=lambda h: order[n, h]):
            for i, j in np.argwhere(W[h]):
                at = (scenes.corners[n, h, 0] + i) % 7, (scenes.corners[n, h, 1] + j) % 7
                image[at], owner[at] = T[h, i, j], h
        assert (image.ravel() == points[n]).all()
        assert scenes.visible[n].tolist() == [(owner == h).sum() / 12 for h in range(3)]
    assert len(np.unique(scenes.corners)) == 7
