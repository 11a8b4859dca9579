"""Sheets of fields and points."""

from io import BytesIO

import numpy as np
import pytest
from matplotlib.image import imread

from parallel_et.reports.pictures import Cell, CellStyle, draw_fields, draw_sheet, encode_png, grid_cells


def pixels(figure):
    return imread(BytesIO(encode_png(figure)))[..., :3]


def coloured(image):
    return bool((np.ptp(image, axis=2) > 0.1).any())


def test_the_shape_of_a_point_sets_its_style():
    assert CellStyle.for_shape((4, 6), signed=False) == CellStyle((4, 6), False)
    assert CellStyle.for_shape((25,), signed=True).image is None
    assert CellStyle.for_shape((3, 4, 6), signed=True).image is None


def test_on_and_off_channels_are_subtracted_also_for_positive_fields():
    style = CellStyle.for_shape((2, 3, 4), signed=False)
    assert style.signed
    assert style.image == (3, 4)
    values = np.arange(24.0)
    np.testing.assert_array_equal(style.displayed(values), np.full(12, -12.0))
    assert coloured(pixels(draw_sheet(grid_cells([values, -values]), style)))


@pytest.mark.parametrize("shape", [(5, 5), (25,)])
def test_fields_of_one_sign_have_no_colour(shape):
    W = np.abs(np.random.default_rng(1).standard_normal((25, 7)))
    image = pixels(
        draw_sheet(grid_cells(W.T, [f"field {h}" for h in range(7)]), CellStyle.for_shape(shape, signed=False))
    )
    assert not coloured(image)
    assert image.min() < 0.2


def test_images_show_each_value_at_its_place():
    values = np.zeros(20)
    values[0] = 1.0  # upper left
    image = pixels(draw_sheet(grid_cells([values]), CellStyle((4, 5), False))).mean(2)
    dark = np.argwhere(image[:, : image.shape[1] // 2] < 0.05)
    assert dark.mean(0)[0] < image.shape[0] / 2


def test_one_bright_field_of_many_does_not_hide_the_others():
    W = np.ones((200, 16))
    W[7] = 1000.0
    assert (pixels(draw_sheet(grid_cells(W), CellStyle((4, 4), False))) < 0.1).mean() > 0.5


def test_constant_and_empty_fields_can_be_drawn(tmp_path):
    for shape in ((2, 2), (4,), (2, 2, 1)):
        draw_fields(np.zeros((4, 3)), shape, tmp_path / "fields.png", "nothing yet")
        assert imread(tmp_path / "fields.png").ndim == 3


def test_a_title_is_not_read_as_a_formula(tmp_path):
    draw_fields(np.ones((4, 2)), (2, 2), tmp_path / "fields.png", r"the job $\frac$")
    assert (tmp_path / "fields.png").read_bytes().startswith(b"\x89PNG")


def test_pixels_of_three_channels_are_drawn_in_their_colours():
    style = CellStyle.for_shape((4, 2, 3), signed=True)
    assert style == CellStyle((4, 2), False, 3)
    red, white = np.tile([5.0, 0.0, 0.0], 8), np.full(24, 5.0)
    image = pixels(draw_sheet(grid_cells([red, white]), style))
    assert (image == [1, 0, 0]).all(2).any()
    grey = pixels(draw_sheet(grid_cells([white, white / 2, -white]), style))
    assert not coloured(grey)


def test_a_cell_may_have_its_own_style_and_scale():
    mask = np.repeat([0.0, 1e-3], 4)
    cells = [Cell(0, 0, np.full(24, 9.0)), Cell(0, 1, mask, "mask", CellStyle((4, 2), False))]
    image = pixels(draw_sheet(cells, CellStyle.for_shape((4, 2, 3), signed=False)))
    assert (image == 0).all(2).sum() > 500  # the brightest of the mask is black, however small
