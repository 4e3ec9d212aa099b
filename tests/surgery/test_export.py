"""Grafted models leave for torch.export and ONNX and compute the same there."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.surgery.hosts import CORES, built, inputs, put

pytest.importorskip("transformers")
NAMES = {"bert": ("input_ids", "attention_mask"), "vit": ("pixel_values",)}


class Plain(nn.Module):
    """A host whose inputs come in order and whose output is a tensor."""

    def __init__(self, host: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.host, self.names = host, names

    def forward(self, *given: Tensor) -> Tensor:
        return self.host(**dict(zip(self.names, given, strict=True))).last_hidden_state


def plain(host: str, core: str, where: str) -> tuple[Plain, tuple[Tensor, ...]]:
    model, given = built(host).float(), inputs(host)
    put(model, core, where)
    found = tuple(
        given[name].float() if given[name].is_floating_point() else given[name] for name in NAMES[host]
    )
    return Plain(model, NAMES[host]).eval(), found


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(("host", "where"), [("bert", "last"), ("bert", "all"), ("vit", "all")])
def test_exported_programs_agree(host: str, core: str, where: str) -> None:
    model, given = plain(host, core, where)
    program = torch.export.export(model, given)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(*given), model(*given), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("host", "core"), [("bert", "primal"), ("bert", "rpc"), ("bert", "landmarks"), ("vit", "landmarks")]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_onnx_agrees(host: str, core: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model, given = plain(host, core, "all")
    path = tmp_path / "model.onnx"
    torch.onnx.export(model, given, path, dynamo=True, verbose=False)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = {slot.name: each.numpy() for slot, each in zip(session.get_inputs(), given, strict=True)}
    (found,) = session.run(None, feed)
    with torch.no_grad():
        np.testing.assert_allclose(found, model(*given).numpy(), atol=1e-4)
