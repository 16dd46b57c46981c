"""A model whose input and output are images: blurring a picture.

pytest -p pytest_ane.mac.predict examples/predict/test_image_model.py
"""

import coremltools as ct
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

HEIGHT, WIDTH = 24, 32


class Blur(nn.Module):
    """Each colour's mean over 3 x 3 pixels; takes and gives values from 0 to 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[1, 3, H, W]` to the same shape, with values from 0 to 255."""
        padded = nn.functional.pad(x, (1, 1, 1, 1), mode="reflect")
        return nn.functional.avg_pool2d(padded, 3, stride=1) * 255.0


@pytest.fixture(scope="module")
def model() -> ct.models.MLModel:
    shape = (1, 3, HEIGHT, WIDTH)
    return ct.convert(
        torch.jit.trace(Blur().eval(), torch.zeros(shape)),
        inputs=[ct.ImageType("picture", shape, scale=1 / 255)],
        outputs=[ct.ImageType("blurred", color_layout=ct.colorlayout.RGB)],
        minimum_deployment_target=ct.target.iOS17,
    )


@pytest.fixture
def picture() -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    return Image.fromarray(pixels)


def test_a_picture_is_blurred(model: ct.models.MLModel, picture: Image.Image) -> None:
    blurred = model.predict({"picture": picture})["blurred"]
    assert blurred.size == picture.size
    planes = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None] / 255
    expected = Blur()(planes)[0].permute(1, 2, 0).numpy()
    np.testing.assert_allclose(np.asarray(blurred.convert("RGB")), expected, atol=1)


def test_one_colour_stays_as_it_is(model: ct.models.MLModel) -> None:
    plain = Image.new("RGB", (WIDTH, HEIGHT), (200, 100, 50))
    blurred = model.predict({"picture": plain})["blurred"].convert("RGB")
    np.testing.assert_allclose(np.asarray(blurred), np.asarray(plain), atol=1)


def test_another_size_is_refused(model: ct.models.MLModel, picture: Image.Image) -> None:
    with pytest.raises(RuntimeError):
        model.predict({"picture": picture.resize((WIDTH * 2, HEIGHT))})


def test_another_mode_is_refused(model: ct.models.MLModel, picture: Image.Image) -> None:
    with pytest.raises(TypeError):
        model.predict({"picture": picture.convert("L")})
