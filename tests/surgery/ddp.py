"""Two training steps in two processes: a script that takes the rank, a file for the meeting, and cases."""

import copy
import os
import sys
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from kernelhead.nn import ksvd_penalty, record
from kernelhead.surgery import graft
from tests.surgery.hosts import built, inputs, output

Case = tuple[str, str, dict[str, Any]]
CASES: list[Case] = [
    ("torch_encoder", "primal", {"rank": 3}),
    ("torch_encoder", "rpc", {}),
    ("bert", "primal", {"rank": 3}),
    ("bert", "primal", {"rank": 3, "landmarks": 4}),
    ("bert", "primal", {"rank": 3, "options": {"mix": "join"}}),
    ("bert", "rpc", {}),
    ("bert", "softmax", {}),
    ("gpt2", "primal", {"rank": 3}),
    ("llama", "rpc", {}),
    *((host, "primal", {"rank": 3}) for host in ("torch_layer", "torch_decoder", "roberta", "distilbert")),
    *((host, "primal", {"rank": 3}) for host in ("vit", "deit", "llama")),
]
TIMM: list[Case] = [("timm_vit", "primal", {"rank": 3}), ("timm_vit", "rpc", {}), ("timm_vit", "softmax", {})]


def train(host: str, core: str, given: dict[str, Any]) -> None:
    model = built(host).train()
    graft(model, core, "all", **given)
    # What a host does not use of its own is not what is tried here.
    for name, weight in model.named_parameters():
        weight.requires_grad_(weight.requires_grad and "pooler" not in name)
    alone = copy.deepcopy(model)
    # The values of joined scores are read by the penalty alone.
    joined = "landmarks" in given or "options" in given
    for trained in (DistributedDataParallel(model), alone):
        step = torch.optim.SGD(trained.parameters(), 0.1)
        for _ in range(2):
            step.zero_grad()
            with record(trained) as tape:
                loss = output(trained, inputs(host)).square().mean()
                loss = loss + ksvd_penalty(tape) if joined else loss
            loss.backward()
            step.step()
    for (name, found), wanted in zip(model.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(
            found, wanted, msg=lambda words, name=name: f"{host}, {core}, {name}: {words}"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "gloo", init_method=f"file://{sys.argv[2]}", rank=int(sys.argv[1]), world_size=2
    )
    for case in TIMM if sys.argv[3] == "timm" else CASES:
        train(*case)
    distributed.destroy_process_group()
