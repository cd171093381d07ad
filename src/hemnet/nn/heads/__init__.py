"""Segmentation heads: from a backbone's features to class logits.

Every head is made with (channels, strides, num_classes, **options) and maps the list of features
to B,classes,h,w; the segmenter resizes that to the image. A second argument, a mask 1,h,w or
B,h,w of the last features, is 0 where a feature lies on padding: what a head collects over the
whole image leaves these out. A head whose logits are not on the grid of the last features says
so by `level`, the number of the features they are on, and is told by `offset` on which feature of
that grid the first one of the last features lies.
"""

from torch import nn

from hemnet.nn.heads.attention import EMAHead, HEMHead, NonLocalHead
from hemnet.nn.heads.deeplab import DeepLabV3PlusHead
from hemnet.nn.heads.dual import DualAttentionHead
from hemnet.nn.heads.fcn import AuxiliaryHead, FCNHead
from hemnet.nn.heads.pointwise import PSAHead
from hemnet.nn.heads.pyramid import PSPHead

HEADS: dict[str, type[nn.Module]] = {
    "hemnet": HEMHead,
    "emanet": EMAHead,
    "fcn": FCNHead,
    "deeplabv3plus": DeepLabV3PlusHead,
    "psanet": PSAHead,
    "pspnet": PSPHead,
    "danet": DualAttentionHead,
    "nonlocal": NonLocalHead,
}

__all__ = ["HEADS", "AuxiliaryHead"]
