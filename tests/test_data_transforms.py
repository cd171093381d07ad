"""The training pipeline: what it draws, and that image and mask stay together."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from hemnet.data.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Augmentation,
    RandomScaleCrop,
    normalise,
    seeded_draws,
    training_transform,
)


def pair(height=40, width=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator)
    mask = torch.randint(0, 5, (height, width), dtype=torch.uint8, generator=generator)
    return tv_tensors.Image(image), tv_tensors.Mask(mask)


def coded(height=40, width=60):
    """A pair where the mask is the image's red channel, constant over 10 × 10 squares."""
    blocks = torch.arange((height // 10) * (width // 10), dtype=torch.uint8)
    plane = blocks.view(height // 10, -1).repeat_interleave(10, 0).repeat_interleave(10, 1)
    return tv_tensors.Image(plane.expand(3, -1, -1).clone() * 8), tv_tensors.Mask(plane)


@settings(deadline=None, max_examples=40)
@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    crop=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    seed=st.integers(0, 10**6),
)
def test_any_image_comes_out_at_the_crop_s_size(height, width, crop, seed):
    transform = training_transform(Augmentation(crop=crop))
    with seeded_draws(seed, 0, 0):
        image, mask = transform(*pair(height, width))
    assert image.shape == (3, *crop)
    assert image.dtype == torch.uint8
    assert mask.shape == crop
    assert mask.dtype == torch.uint8


def test_padding_has_the_mean_colour_and_the_void_label():
    image, mask = pair(10, 10)
    augmentation = Augmentation(crop=(30, 30), scale=(1.0, 1.0), jitter=0.5)
    with seeded_draws(0, 0, 0):
        out, labels = training_transform(augmentation)(image, mask)
    void = labels == 255
    assert int(void.sum()) == 30 * 30 - 10 * 10
    assert normalise(out)[:, void].abs().max() < 0.01  # to half an 8-bit step
    assert sorted(labels[~void].tolist()) == sorted(mask.flatten().tolist())


@pytest.mark.parametrize("seed", range(8))
def test_image_and_mask_stay_together(seed):
    augmentation = Augmentation(crop=(48, 48), scale=(0.5, 2.0))
    with seeded_draws(seed, 0, 0):
        image, mask = training_transform(augmentation)(*coded())
    level = image[0] / 8  # the class, away from where squares meet
    inner = (mask != 255) & (mask > 0)
    near = (level - mask).abs() < 0.5
    assert near[inner].float().mean() > 0.6


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.3, 2.0])
def test_scaling_only_the_window_gives_the_picture_of_scaling_all(factor):
    y, x = torch.meshgrid(torch.arange(200), torch.arange(240), indexing="ij")
    waves = 128 + 60 * torch.sin(y / 7 + x / 29) + 60 * torch.cos(x / 5)
    smooth = tv_tensors.Image(waves.to(torch.uint8).expand(3, -1, -1).contiguous())
    step = RandomScaleCrop((40, 40), (factor, factor))
    with seeded_draws(3, 0, 0):
        params = step.make_params([smooth])
    out = step.transform(smooth, params).float()
    whole = F.resize(smooth, [round(200 * factor), round(240 * factor)], antialias=True).float()
    top, left = (round(params[axis][0] * factor) for axis in ("rows", "columns"))

    def distance(rows, columns):
        expected = whole[:, top + rows : top + rows + 40, left + columns : left + columns + 40]
        return (out - expected)[:, 4:-4, 4:-4].abs().mean()

    assert distance(0, 0) < 7  # the window starts at a whole source pixel: half a pixel off at most
    assert min(distance(5, 0), distance(0, 5)) > 14


def test_scales_cover_the_range_evenly():
    step = RandomScaleCrop((50, 50), (0.5, 2.0))
    image = pair(200, 200)[0]
    factors = []
    for index in range(400):
        with seeded_draws(0, 0, index):
            factors.append(50 / step.make_params([image])["rows"][1])
    low, middle = min(factors), sum(factors) / len(factors)
    assert low < 0.55
    assert max(factors) > 1.9
    assert abs(middle - 1.25) < 0.07


def test_flip_probability_and_no_flip():
    image, mask = pair(8, 8)
    for probability, expected in ((0.0, False), (1.0, True)):
        config = Augmentation(crop=(8, 8), scale=(1.0, 1.0), flip=probability)
        with seeded_draws(0, 0, 0):
            _, labels = training_transform(config)(image, mask)
        assert torch.equal(labels, mask.flip(1) if expected else mask)


def test_normalise_is_torchvision_s():
    image, _ = pair(33, 47)
    image = image.as_subclass(torch.Tensor)
    expected = F.normalize(image.float() / 255, list(IMAGENET_MEAN), list(IMAGENET_STD))
    torch.testing.assert_close(normalise(image), expected)
    batch = normalise(torch.stack([image, image]), (0.5, 0.5, 0.5), (0.25, 0.5, 1.0))
    torch.testing.assert_close(batch[1, 2], image[2] / 255 - 0.5)
    assert image.dtype == torch.uint8  # not changed in place


def test_draws_depend_on_the_key_alone():
    def draw(*key):
        with seeded_draws(*key):
            return torch.rand(4)

    torch.manual_seed(0)
    reference = draw(1, 2, 3)
    torch.manual_seed(7)
    assert torch.equal(draw(1, 2, 3), reference)
    others = [draw(*key) for key in ((0, 2, 3), (1, 0, 3), (1, 2, 0), (2, 1, 3), (3, 2, 1))]
    assert not any(torch.equal(other, reference) for other in others)


@pytest.mark.parametrize(
    "wrong",
    [
        {"crop": (0, 5)},
        {"scale": (2.0, 0.5)},
        {"scale": (0.0, 1.0)},
        {"flip": 2.0},
        {"jitter": -1.0},
        {"std": (0, 1, 1)},
    ],
    ids=str,
)
def test_impossible_augmentations_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Augmentation(**wrong)


def test_scales_from_a_list_are_all_drawn_and_no_others():
    image = pair(2000, 2000)[0]
    step = RandomScaleCrop((840, 840), (0.5, 2.0), 0.25)
    windows = set()
    for index in range(200):
        with seeded_draws(0, 0, index):
            windows.add(step.make_params([image])["rows"][1])
    assert windows == {round(840 / scale) for scale in (0.5, 0.75, 1, 1.25, 1.5, 1.75, 2)}
