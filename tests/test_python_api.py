"""What users of Python have without deep imports."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "code",
    [
        "hemnet.data.open_dataset('scenes', split='val', size=32)[0]",
        "hemnet.data.list_datasets(), hemnet.data.dataset_info('voc').classes",
        "hemnet.models.create_model('fcn', 2, 'test_resnet')",
    ],
)
def test_packages_need_no_import_of_their_own(code):
    subprocess.run([sys.executable, "-c", f"import hemnet; {code}"], check=True)
