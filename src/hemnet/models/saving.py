"""Save models as a folder with `config.json` and `model.safetensors`, locally or on the hub."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub
from safetensors.torch import save_file
from torch import Tensor

from hemnet.errors import UserError
from hemnet.version import __version__

if TYPE_CHECKING:  # which calls these functions
    from hemnet.models.segmenter import Segmenter

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
FORMAT = 1


def save_pretrained(model: Segmenter, folder: str | Path, half: bool = False) -> Path:
    """Write a model's folder. Each file appears only when it is complete.

    With `half` kernels are stored in half precision, everything else as it is: norms' statistics
    would leave its range.
    """
    if model.fused:
        raise UserError("a fused model cannot be saved: save the model that it was made from")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config_content(model), indent=2, ensure_ascii=False) + "\n"
    state = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
    if half:
        state = {k: v.half() if _is_kernel(k, v) else v for k, v in state.items()}
        lost = [k for k, v in state.items() if not v.isfinite().all()]
        if lost:
            raise UserError(f"half precision has no numbers as large as those of {lost[0]}")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as temporary:
        Path(temporary, CONFIG).write_text(text, encoding="utf-8")
        save_file(state, Path(temporary, WEIGHTS), metadata={"format": "pt"})
        # safetensors lets only the owner read; whoever may read the one may read the other.
        Path(temporary, WEIGHTS).chmod(Path(temporary, CONFIG).stat().st_mode)
        for name in (WEIGHTS, CONFIG):
            os.replace(Path(temporary, name), folder / name)
    return folder


def push_to_hub(model: Segmenter, repo_id: str, private: bool = False) -> str:
    """Upload a model; needs a login of `huggingface_hub`. Returns the address."""
    api = huggingface_hub.HfApi()
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder)
        address = api.create_repo(repo_id, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repo_id, folder_path=folder, commit_message=f"hemnet {__version__} model"
        )
    return str(address)


def config_content(model: Segmenter) -> dict[str, Any]:
    """The content of `config.json`, for `parse_config`."""
    return {"format": FORMAT, "hemnet_version": __version__} | asdict(model.config)


def _is_kernel(name: str, value: Tensor) -> bool:
    """Whether it is a convolution's; bases are matrices too, but small."""
    return name.endswith(".weight") and value.ndim > 1
