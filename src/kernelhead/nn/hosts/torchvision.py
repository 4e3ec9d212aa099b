"""torchvision beside a torch that it was not built for: mended so that timm and transformers import."""

import importlib
import sys

import torch

# Kept for good: a library that goes takes its operators with it.
_KEPT: list[torch.library.Library] = []


def mend_torchvision() -> bool:
    """Import torchvision; where its compiled operators are missing, declare them and import it again.

    Some builds of torch have no matching build of torchvision: then ``import torchvision`` raises that
    `torchvision::nms` does not exist, and takes timm and models of transformers with it. With the
    operators declared all of them import; calling one of the operators goes on failing. Where
    torchvision imports by itself, or is not installed, nothing is done.

    Returns:
        Whether torchvision can be imported.

    Raises:
        RuntimeError: torchvision fails for another reason.
    """
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return False
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for name in [each for each in sys.modules if each.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)
        importlib.import_module("torchvision")
    return True
