"""Highway Expectation-Maximization Networks: attention and segmentation in PyTorch."""

from hemnet.em import (
    EMResult,
    Iteration,
    e_step,
    elbo,
    highway_em,
    log_likelihood,
    n_step,
    r_step,
    trace,
)
from hemnet.nn.attention import EMAttention, HighwayEMAttention
from hemnet.nn.health import BasesWarning, Health
from hemnet.version import __version__

__all__ = [
    "BasesWarning",
    "EMAttention",
    "EMResult",
    "Health",
    "HighwayEMAttention",
    "Iteration",
    "__version__",
    "e_step",
    "elbo",
    "highway_em",
    "log_likelihood",
    "n_step",
    "r_step",
    "trace",
]
