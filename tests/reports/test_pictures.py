"""Sheets of fields and points."""

from io import BytesIO

import numpy as np
import pytest
from matplotlib.image import imread

from parallel_et.reports.pictures import Cell, Look, draw_fields, draw_sheet, grid, png


def pixels(figure):
    return imread(BytesIO(png(figure)))[..., :3]


def coloured(image):
    return bool((np.ptp(image, axis=2) > 0.1).any())


def test_the_shape_of_a_point_says_how_it_is_drawn():
    assert Look.of((4, 6), signed=False) == Look((4, 6), False)
    assert Look.of((25,), signed=True).image is None
    assert Look.of((3, 4, 6), signed=True).image is None


def test_on_and_off_channels_are_put_together_also_where_fields_are_positive():
    look = Look.of((2, 3, 4), signed=False)
    assert look.signed
    assert look.image == (3, 4)
    values = np.arange(24.0)
    np.testing.assert_array_equal(look.shown(values), np.full(12, -12.0))
    assert coloured(pixels(draw_sheet(grid([values, -values]), look)))


@pytest.mark.parametrize("shape", [(5, 5), (25,)])
def test_fields_of_one_sign_have_no_colour(shape):
    W = np.abs(np.random.default_rng(1).standard_normal((25, 7)))
    image = pixels(draw_sheet(grid(W.T, [f"field {h}" for h in range(7)]), Look.of(shape, signed=False)))
    assert not coloured(image)
    assert image.min() < 0.2


def test_images_show_their_values_where_they_belong():
    values = np.zeros(20)
    values[0] = 1.0  # upper left
    image = pixels(draw_sheet(grid([values]), Look((4, 5), False))).mean(2)
    dark = np.argwhere(image[:, : image.shape[1] // 2] < 0.05)
    assert dark.mean(0)[0] < image.shape[0] / 2


def test_one_bright_field_of_many_does_not_hide_the_others():
    W = np.ones((200, 16))
    W[7] = 1000.0
    assert (pixels(draw_sheet(grid(W), Look((4, 4), False))) < 0.1).mean() > 0.5


def test_constant_and_empty_fields_can_be_drawn(tmp_path):
    for shape in ((2, 2), (4,), (2, 2, 1)):
        draw_fields(np.zeros((4, 3)), shape, tmp_path / "fields.png", "nothing yet")
        assert imread(tmp_path / "fields.png").ndim == 3


def test_a_title_is_not_read_as_a_formula(tmp_path):
    draw_fields(np.ones((4, 2)), (2, 2), tmp_path / "fields.png", r"the job $\frac$")
    assert (tmp_path / "fields.png").read_bytes().startswith(b"\x89PNG")


def test_pixels_of_three_channels_are_drawn_in_their_colours():
    look = Look.of((4, 2, 3), signed=True)
    assert look == Look((4, 2), False, 3)
    red, white = np.tile([5.0, 0.0, 0.0], 8), np.full(24, 5.0)
    image = pixels(draw_sheet(grid([red, white]), look))
    assert (image == [1, 0, 0]).all(2).any()
    grey = pixels(draw_sheet(grid([white, white / 2, -white]), look))
    assert not coloured(grey)


def test_a_cell_may_have_a_look_and_a_scale_of_its_own():
    mask = np.repeat([0.0, 1e-3], 4)
    cells = [Cell(0, 0, np.full(24, 9.0)), Cell(0, 1, mask, "mask", Look((4, 2), False))]
    image = pixels(draw_sheet(cells, Look.of((4, 2, 3), signed=False)))
    assert (image == 0).all(2).sum() > 500  # the brightest of the mask is black, however small
