"""A moving average of a network's weights, which is judged and kept in the network's place.

The last steps of a training scatter around a better network than any of them. Buffers are averaged
as the weights are: a batch norm's statistics, and the bases between images, then belong to them.
"""

from __future__ import annotations

from timm.utils.model_ema import ModelEmaV3

from hemnet.models.segmenter import Segmenter


class AveragedWeights(ModelEmaV3):
    """average ← d · average + (1 − d) · weights, with d = min(decay, (1 + n)/(10 + n)) in step n.

    The start, which is not trained yet, is so forgotten within a few steps.
    """

    module: Segmenter

    def __init__(self, model: Segmenter, decay: float) -> None:
        super().__init__(model, decay)
        self.module.requires_grad_(False)

    def get_decay(self, step: int | None = None) -> float:
        return self.decay if step is None else min(self.decay, (1 + step) / (10 + step))
