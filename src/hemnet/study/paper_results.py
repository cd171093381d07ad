"""What the paper printed: its Tables 1, 2 and 3, PASCAL VOC val mIoU in percent."""

from collections.abc import Mapping
from typing import Any

from hemnet.study.uncertainty import summary_of

ITERATIONS = (1, 2, 3, 4, 6, 8, 12, 16)
STEP_SIZES = (0.1, 0.2, 0.4, 0.8)

# Table 1, ResNet-50, stride 16: a column of ITERATIONS in training for each step size.
TABLE_1: dict[str, tuple[float, ...]] = {
    "0.1": (77.17, 77.16, 77.05, 77.64, 77.46, 77.48, 77.74, 77.64),
    "0.2": (77.50, 77.80, 77.82, 77.73, 78.22, 78.14, 78.11, 77.65),
    "0.4": (77.92, 77.50, 77.81, 78.11, 77.83, 77.60, 77.73, 77.81),
    "0.8": (77.26, 78.10, 77.94, 77.10, 77.40, 78.04, 77.84, 77.06),
    "emanet": (77.31, 77.55, 76.51, 76.63, 76.26, 76.48, 76.17, 76.29),
}

# Table 2: ITERATIONS in evaluation of the best network of each column of Table 1, and how many
# iterations that network was trained with.
TABLE_2: dict[str, tuple[float, ...]] = {
    "0.1": (64.52, 70.72, 73.72, 75.34, 76.88, 77.47, 77.74, 77.84),
    "0.2": (70.30, 75.50, 77.33, 77.96, 78.22, 78.13, 77.98, 77.90),
    "0.4": (73.20, 76.94, 77.85, 78.11, 78.24, 78.24, 78.19, 78.17),
    "0.8": (77.16, 78.10, 78.34, 78.42, 78.37, 78.30, 78.26, 78.23),
    "emanet": (76.26, 77.55, 77.73, 77.70, 77.50, 77.37, 77.21, 77.16),
}
TABLE_2_TRAINED = {"0.1": 12, "0.2": 6, "0.4": 4, "0.8": 2, "emanet": 2}

# Table 3, ResNet-101, stride 8: single scale, and six scales with flip.
TABLE_3: dict[str, tuple[str, float, float]] = {
    "deeplabv3plus": ("DeepLabV3+", 77.62, 78.72),
    "psanet": ("PSANet", 78.51, 79.77),
    "emanet": ("EMANet (512)", 80.05, 81.32),
    "hemnet": ("HEMNet (512)", 81.33, 82.23),
}


def as_summary(table: Mapping[str, tuple[float, ...]]) -> dict[str, Any]:
    """A table of the paper, one run a cell, in the form of a study's own summary."""
    return {
        "iterations": list(ITERATIONS),
        "columns": list(table),
        "cells": {
            column: {
                str(t): summary_of([value]) for t, value in zip(ITERATIONS, printed, strict=True)
            }
            for column, printed in table.items()
        },
        "best_iterations": {
            column: ITERATIONS[printed.index(max(printed))] for column, printed in table.items()
        },
    }
