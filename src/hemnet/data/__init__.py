"""Data sets: the catalog, readers, transforms, batches, and the built-in scenes and recall."""

from hemnet.data.catalog import GENERATED, dataset_info, list_datasets, open_dataset
from hemnet.data.dataset import FileDataset, Info, Part, SegmentationDataset
from hemnet.data.labels import VOID, Coding, DataError
from hemnet.data.loading import Batch, Batches, evaluation_batches, training_batches
from hemnet.data.recall import Recall
from hemnet.data.sampler import EndlessSampler
from hemnet.data.scenes import Scenes
from hemnet.data.transforms import Augmentation, normalise, training_transform

__all__ = [
    "GENERATED",
    "VOID",
    "Augmentation",
    "Batch",
    "Batches",
    "Coding",
    "DataError",
    "EndlessSampler",
    "FileDataset",
    "Info",
    "Part",
    "Recall",
    "Scenes",
    "SegmentationDataset",
    "dataset_info",
    "evaluation_batches",
    "list_datasets",
    "normalise",
    "open_dataset",
    "training_batches",
    "training_transform",
]
