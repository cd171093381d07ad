"""A pytest plugin: files that take long come early, and no process is left with one at the end."""

import pytest

# These hear the program's log, which some later file silences for the rest of its process; which
# one is not known yet.
HEAR = (
    *("test_app_explorer", "test_config", "test_train_model", "test_cli"),
    *("test_backbone_weights", "test_data_loading"),
)
LONGEST = (
    *("test_train_two_hosts", "test_documents", "test_geometry", "test_app_browser", "test_train"),
    *("test_train_run_folder", "test_export", "test_quantise", "test_train_distributed"),
    *("test_studies", "test_study_grid", "test_fuzz", "test_models", "test_attention"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate((*HEAR, *LONGEST))}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))
