"""One of every mixture, and a problem that each of them takes."""

import torch
from torch import Tensor

import hemnet

SAMPLES = [
    hemnet.Gaussian(0.7),
    hemnet.Gaussian(0.7, "rbf"),
    hemnet.VonMisesFisher(4.0),
    hemnet.VonMisesFisher(1.0, normalise=False),
    hemnet.DiagonalGaussian(initial=0.5),
    hemnet.Bernoulli(),
]
ids = [repr(mixture) for mixture in SAMPLES]


def problem(seed: int, batch: int = 2, positions: int = 30) -> tuple[Tensor, Tensor]:
    """Features and bases in (0, 1), which every mixture takes; the bases on the unit sphere."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(batch, positions, 4, generator=generator, dtype=torch.float64)
    bases = torch.rand(3, 4, generator=generator, dtype=torch.float64) + 0.1
    return x, torch.nn.functional.normalize(bases, dim=-1)
