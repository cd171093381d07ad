"""A member of every family of backbones that the documents name."""

# Family → (a small member, strides it can do).
FAMILIES = {
    "ResNet": ("resnet10t", (8, 16, 32)),
    "ResNet with deep stem": ("resnet50s", (8, 16, 32)),
    "ResNet with blur pooling": ("resnetblur18", (8, 16, 32)),
    "ResNeXt": ("resnext26ts", (8, 16, 32)),
    "ConvNeXt": ("test_convnext", (8, 16, 32)),
    "EfficientNet": ("test_efficientnet", (8, 16, 32)),
    "EfficientNet-Lite": ("tf_efficientnet_lite0", (8, 16, 32)),
    "MobileNetV2": ("mobilenetv2_035", (8, 16, 32)),
    "MobileNetV3": ("mobilenetv3_small_050", (8, 16, 32)),
    "RegNet": ("regnetx_002", (8, 16, 32)),
    "HRNet": ("hrnet_w18_small", (8, 16, 32)),
    "Xception": ("xception41", (8,)),
    "DenseNet": ("densenet121", (32,)),
    "Swin": ("swin_tiny_patch4_window7_224", (32,)),
    "PVT": ("pvt_v2_b0", (32,)),
    "MambaOut, channels last": ("mambaout_femto", (32,)),
    "ViT": ("test_vit", (16,)),
}
