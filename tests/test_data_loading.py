"""Every draw is a function of (seed, epoch, index): workers, ranks and resuming change nothing."""

import itertools
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import v2

from hemnet.data import (
    Augmentation,
    DataError,
    EndlessSampler,
    Scenes,
    evaluation_batches,
    normalise,
    open_dataset,
    training_batches,
)
from hemnet.data.labels import VOID
from support.tiny_data import folder

AUGMENTATION = Augmentation(crop=(20, 28), jitter=0.3)


def first(batches, count):
    return list(itertools.islice(batches, count))


def assert_same(left, right):
    assert [batch.ids for batch in left] == [batch.ids for batch in right]
    for a, b in zip(left, right, strict=True):
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.masks, b.masks)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return open_dataset("folder", folder(tmp_path_factory.mktemp("data"), {"train": 7}), "train")


@pytest.fixture(scope="module")
def uninterrupted(dataset):
    return first(training_batches(dataset, AUGMENTATION, batch_size=4, seed=5), 6)


def test_batches_are_what_a_loop_needs(uninterrupted):
    batch = uninterrupted[0]
    assert batch.images.shape == (4, 3, 20, 28)
    assert batch.images.dtype == torch.float32
    assert batch.masks.shape == (4, 20, 28)
    assert batch.masks.dtype == torch.int64
    assert len(batch) == 4
    assert type(batch.images) is torch.Tensor


@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_workers_gives_the_same_batches(dataset, uninterrupted, workers):
    batches = training_batches(dataset, AUGMENTATION, batch_size=4, seed=5, workers=workers)
    assert_same(first(batches, 6), uninterrupted)


@pytest.mark.parametrize(("step", "workers"), [(1, 0), (2, 0), (5, 0), (3, 2)])
def test_resuming_at_a_step_goes_on_as_if_nothing_happened(dataset, uninterrupted, step, workers):
    rest = training_batches(dataset, AUGMENTATION, batch_size=4, seed=5, step=step, workers=workers)
    assert_same(first(rest, 6 - step), uninterrupted[step:])


def test_the_loop_s_own_random_numbers_do_not_matter(dataset, uninterrupted):
    torch.manual_seed(99)
    batches = []
    for batch in itertools.islice(training_batches(dataset, AUGMENTATION, batch_size=4, seed=5), 6):
        torch.rand(3)
        batches.append(batch)
    assert_same(batches, uninterrupted)


def test_reading_leaves_the_loop_s_random_numbers_alone(dataset):
    iterator = iter(training_batches(dataset, AUGMENTATION, batch_size=2))
    next(iterator)  # the DataLoader draws its own base seed when it starts
    before = torch.get_rng_state()
    next(iterator)
    assert torch.equal(torch.get_rng_state(), before)


def test_seeds_and_epochs_draw_anew(dataset):
    one = first(training_batches(dataset, AUGMENTATION, batch_size=7, seed=0), 2)
    other = first(training_batches(dataset, AUGMENTATION, batch_size=7, seed=1), 1)
    assert not torch.equal(one[0].images, other[0].images)
    # Both batches of seven hold the same seven images, in another order and other crops.
    assert sorted(one[0].ids) == sorted(one[1].ids)
    place = one[1].ids.index(one[0].ids[0])
    assert not torch.equal(one[0].images[0], one[1].images[place])


@given(
    size=st.integers(1, 40),
    world=st.integers(1, 4),
    seed=st.integers(0, 9),
    start=st.integers(0, 30),
    count=st.integers(1, 60),
)
def test_ranks_share_one_global_order(size, world, seed, start, count):
    def take(sampler, number):
        return list(itertools.islice(sampler, number))

    whole = take(EndlessSampler(size, seed=seed), start * world + count * world)
    ranks = [
        take(EndlessSampler(size, seed=seed, rank=r, world_size=world, start=start * world), count)
        for r in range(world)
    ]
    merged = [key for keys in zip(*ranks, strict=True) for key in keys]
    assert merged == whole[start * world :]


@given(size=st.integers(1, 30), seed=st.integers(0, 99))
def test_an_epoch_is_every_image_once(size, seed):
    keys = list(itertools.islice(EndlessSampler(size, seed=seed), 3 * size))
    for epoch in range(3):
        part = keys[epoch * size : (epoch + 1) * size]
        assert sorted(part) == [(epoch, index) for index in range(size)]


def test_two_ranks_make_the_batch_of_one(dataset, uninterrupted):
    halves = [
        first(
            training_batches(dataset, AUGMENTATION, batch_size=2, seed=5, rank=r, world_size=2), 6
        )
        for r in range(2)
    ]
    for batch, left, right in zip(uninterrupted, *halves, strict=True):
        assert sorted(batch.ids) == sorted(left.ids + right.ids)
        for half in (left, right):
            for place, key in enumerate(half.ids):
                same = [i for i, other in enumerate(batch.ids) if other == key]
                assert any(torch.equal(batch.images[i], half.images[place]) for i in same)


@pytest.mark.parametrize(
    "wrong", [{"size": 0}, {"rank": 2, "world_size": 2}, {"start": 3, "world_size": 2}]
)
def test_impossible_orders_are_refused(wrong):
    with pytest.raises(ValueError, match=r"expected|needs"):
        EndlessSampler(**({"size": 4} | wrong))


@pytest.fixture
def broken(tmp_path):
    root = folder(tmp_path, {"train": 6})
    file = root / "images" / "train" / "3.jpg"
    file.write_bytes(file.read_bytes()[:200])
    return open_dataset("folder", root)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_file_names_itself(broken, workers):
    with pytest.raises(DataError, match=r"^cannot read the image \S*3\.jpg: ") as caught:
        first(training_batches(broken, AUGMENTATION, batch_size=3, workers=workers), 2)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_skip_counts_reports_and_keeps_batches_full(broken, workers, caplog):
    batches = training_batches(broken, AUGMENTATION, batch_size=3, workers=workers, on_error="skip")
    found = first(batches, 6)  # three epochs
    assert all(len(batch) == 3 for batch in found)
    assert "3" not in {key for batch in found for key in batch.ids}
    assert list(batches.skipped.values()) == [3]
    assert caplog.text.count("3.jpg") == 1  # said once, counted three times


def test_evaluation_leaves_a_skipped_image_out(broken):
    batches = evaluation_batches(broken, on_error="skip")
    assert [batch.ids[0] for batch in batches] == ["0", "1", "2", "4", "5"]
    assert sum(batches.skipped.values()) == 1
    with pytest.raises(DataError, match=r"3\.jpg"):
        list(evaluation_batches(broken))


def test_a_data_set_of_broken_files_is_an_error_even_with_skip(tmp_path):
    root = folder(tmp_path, {"train": 2})
    for file in (root / "images" / "train").iterdir():
        file.write_bytes(b"nothing")
    batches = training_batches(open_dataset("folder", root), batch_size=2, on_error="skip")
    with pytest.raises(DataError, match="in a row"):
        next(iter(batches))


def test_on_error_lists_its_choices(dataset):
    with pytest.raises(ValueError, match="'raise' or 'skip'"):
        training_batches(dataset, on_error="ignore")


def test_evaluation_sees_every_image_once_at_its_own_size(dataset):
    batches = evaluation_batches(dataset)
    assert len(batches) == 7
    seen = list(batches)
    assert [batch.ids for batch in seen] == [[str(i)] for i in range(7)]
    assert all(batch.images.shape == (1, 3, 24, 32) for batch in seen)
    shares = [list(evaluation_batches(dataset, rank=r, world_size=3)) for r in range(3)]
    assert sorted(b.ids[0] for share in shares for b in share) == [str(i) for i in range(7)]


def test_images_of_different_sizes_share_a_batch_that_says_what_is_padding(tmp_path):
    from support.tiny_data import ids, image, label

    for number, side in enumerate((20, 30)):
        image(tmp_path / "images" / f"{number}.jpg", side, side)
        label(tmp_path / "labels" / f"{number}.png", ids(side, side))
    dataset = open_dataset("folder", tmp_path, "all", classes="1")
    assert [tuple(b.images.shape[2:]) for b in evaluation_batches(dataset)] == [(20, 20), (30, 30)]
    (batch,) = evaluation_batches(dataset, batch_size=2)
    assert batch.images.shape == (2, 3, 30, 30)
    assert batch.valid is not None
    assert batch.valid[1].all()
    assert batch.valid[0].sum() == 20 * 20
    assert batch.valid[0, :20, :20].all()
    assert (batch.masks[0][~batch.valid[0]] == VOID).all()
    assert (batch.images[0][:, ~batch.valid[0]] == 0).all()
    alone = next(iter(evaluation_batches(dataset)))
    assert alone.valid is None
    assert torch.equal(batch.images[0, :, :20, :20], alone.images[0])


def test_evaluation_only_normalises(dataset):
    batch = next(iter(evaluation_batches(dataset)))
    image, mask, _ = dataset[0]
    torch.testing.assert_close(batch.images[0], normalise(image))
    assert torch.equal(batch.masks[0], mask)


def test_a_transform_of_one_s_own_draws_from_the_same_keys(dataset):
    transform = v2.Compose([v2.RandomCrop(16), v2.RandomVerticalFlip()])
    make = partial(training_batches, dataset, transform=transform, batch_size=3, seed=2)
    whole = first(make(), 4)
    assert_same(first(make(step=2, workers=2), 2), whole[2:])
    floats = v2.Compose([v2.RandomCrop(16), v2.ToDtype(torch.float32, scale=True)])
    (batch,) = first(training_batches(dataset, transform=floats, batch_size=3), 1)
    assert batch.images.min() >= 0  # what is float already is left as it is
    assert batch.images.max() <= 1


def test_training_batches_have_no_length(dataset):
    with pytest.raises(TypeError, match="no end"):
        len(training_batches(dataset))


def test_scenes_feed_the_same_loop():
    augmentation = Augmentation(crop=(48, 48), scale=(1.0, 1.0))
    (batch,) = first(training_batches(Scenes(size=48), augmentation, batch_size=2), 1)
    assert batch.images.shape == (2, 3, 48, 48)


@pytest.mark.parametrize("kind", ["files", "scenes"])
def test_everything_a_worker_needs_can_be_sent_to_it(dataset, kind):
    """Windows and macOS start workers from nothing and send them the data set."""
    import pickle

    source = dataset if kind == "files" else Scenes(size=32)
    loader = training_batches(source, AUGMENTATION, batch_size=2).loader
    copy = pickle.loads(pickle.dumps(loader.dataset))
    assert torch.equal(copy[(1, 2)].image, loader.dataset[(1, 2)].image)
    assert pickle.loads(pickle.dumps(loader.collate_fn)) is loader.collate_fn
    assert pickle.loads(pickle.dumps(loader.worker_init_fn)) is loader.worker_init_fn
