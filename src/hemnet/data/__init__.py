"""Data sets: the catalog, readers, generators, transforms and batches.

>>> import hemnet.data
>>> hemnet.data.list_datasets()[:3]
['voc', 'pascal_context', 'pascal_context_59']
"""

from hemnet.data.catalog import (
    GENERATED,
    dataset_info,
    list_datasets,
    list_splits,
    open_dataset,
    prepare_dataset,
)
from hemnet.data.check import check_datasets
from hemnet.data.class_frequency import count_classes
from hemnet.data.contact_sheet import draw_contact_sheet
from hemnet.data.dataset import FileDataset, Info, SegmentationDataset, Subset
from hemnet.data.import_annotations import convert_annotations
from hemnet.data.labels import VOID, LabelEncoding
from hemnet.data.loading import Batch, Batches, evaluation_batches, training_batches
from hemnet.data.recall import Recall
from hemnet.data.sampler import EndlessSampler
from hemnet.data.scenes import Scenes
from hemnet.data.transforms import Augmentation, normalise, training_transform
from hemnet.errors import DataError

__all__ = [
    "GENERATED",
    "VOID",
    "Augmentation",
    "Batch",
    "Batches",
    "DataError",
    "EndlessSampler",
    "FileDataset",
    "Info",
    "LabelEncoding",
    "Recall",
    "Scenes",
    "SegmentationDataset",
    "Subset",
    "check_datasets",
    "convert_annotations",
    "count_classes",
    "dataset_info",
    "draw_contact_sheet",
    "evaluation_batches",
    "list_datasets",
    "list_splits",
    "normalise",
    "open_dataset",
    "prepare_dataset",
    "training_batches",
    "training_transform",
]
