"""A pytest plugin: files that take long come first, and no process is left with one at the end."""

import pytest

LONGEST = (
    *("test_train_two_hosts", "test_documents", "test_geometry", "test_app_browser", "test_train"),
    *("test_train_run_folder", "test_export", "test_quantise", "test_train_distributed"),
    *("test_studies", "test_study_grid", "test_fuzz", "test_models", "test_attention"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))
