"""Highway Expectation-Maximization Networks: attention and segmentation in PyTorch."""

from hemnet.version import __version__

__all__ = ["__version__"]
