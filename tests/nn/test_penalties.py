"""ksvd_penalty: the reductions of the published losses, and the batch over processes."""

import os
from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from kernelhead.errors import BadInput, UnknownName
from kernelhead.nn import PrimalAttention, SoftmaxAttention, ksvd_parts, ksvd_penalty, record
from tests.inputs import points
from tests.nn.primal_forms import oracle
from tests.oracles.penalty import head_objective, penalty
from tests.tolerance import assert_exact, assert_within


def two_layers() -> nn.ModuleList:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = PrimalAttention(8, heads=2, rank=3, landmarks=4)
        return nn.ModuleList([first, PrimalAttention(8, heads=2, rank=2)]).double()


@pytest.mark.parametrize("reduction", ["batch", "sample"])
@pytest.mark.parametrize("layers", ["mean", "sum"])
@pytest.mark.parametrize("trace", ["W", "W_X"])
@pytest.mark.parametrize("calls", [1, 2], ids=["one input", "two inputs"])
def test_the_reductions(reduction: str, layers: str, trace: str, calls: int) -> None:
    net, expected = two_layers(), []
    with record(net) as tape:
        for module in net:
            parts = []
            for seed in range(calls):
                x = points(3, 6, 8, seed=seed)
                module(x)
                made = oracle(module, x)
                chosen = made.trace if trace == "W" else made.projected_trace
                parts.append(head_objective(made.left_moments, made.right_moments, module.root, chosen))
            expected.append(parts)
    made = ksvd_penalty(tape, reduction=reduction, layers=layers, trace=trace)
    assert_exact(
        made, torch.tensor(penalty(expected, reduction=reduction, layers=layers), dtype=torch.float64)
    )


def test_calls_with_different_batches() -> None:
    module = two_layers()[0]
    with record(module) as tape:
        module(points(3, 6, 8))
        module(points(2, 6, 8, seed=1))
    parts = []
    for count, seed in ((3, 0), (2, 1)):
        made = oracle(module, points(count, 6, 8, seed=seed))
        parts.append(head_objective(made.left_moments, made.right_moments, module.root, made.trace))
    expected = penalty([parts], reduction="batch", layers="mean")
    assert_exact(ksvd_penalty(tape, reduction="batch"), torch.tensor(expected, dtype=torch.float64))
    with pytest.raises(
        BadInput, match=r"called with batches of \[2, 3\]; reduction 'sample' needs the same samples"
    ):
        ksvd_penalty(tape, reduction="sample")


@pytest.mark.parametrize("reduction", ["batch", "sample"])
def test_weights_only_matter_by_their_ratio(reduction: str) -> None:
    module = two_layers()[0]
    with record(module) as tape:
        module(points(3, 6, 8))
    plain = ksvd_penalty(tape, reduction=reduction)
    for weight in (0.25, 25.0):
        assert_exact(ksvd_penalty(tape, reduction=reduction, weights=torch.full((3,), weight)), plain)
    assert ksvd_penalty(tape, reduction=reduction, weights=torch.zeros(3)).item() == 0
    with pytest.raises(BadInput, match=r"`weights` has shape \(3, 1\), expected \(3,\)"):
        ksvd_penalty(tape, reduction=reduction, weights=torch.ones(3, 1))


@pytest.mark.parametrize("option", ["reduction", "layers", "trace"])
def test_unknown_names(option: str) -> None:
    net = two_layers()
    with record(net) as tape, pytest.raises(UnknownName, match=f"unknown {option} 'batc'"):
        ksvd_penalty(tape, **{option: "batc"})


def _process(rank: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    store = distributed.FileStore(f"{folder}/store", 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    net = PrimalAttention(8, heads=2, rank=3, landmarks=4).double()
    net.load_state_dict(torch.load(f"{folder}/weights"))
    wrapped = DistributedDataParallel(net)
    for reduction in ("batch", "sample"):
        wrapped.zero_grad()
        x = points(4, 6, 8)[2 * rank : 2 * rank + 2]
        with record(wrapped) as tape:
            loss = wrapped(x).square().mean() + ksvd_penalty(tape, reduction=reduction)
        loss.backward()
        if rank == 0:
            torch.save({name: p.grad for name, p in net.named_parameters()}, f"{folder}/{reduction}")
    distributed.destroy_process_group()


def test_parts_are_those_of_every_head_and_layer() -> None:
    layers, x = two_layers(), points(3, 5, 8)
    with record(layers) as tape:
        for layer in layers:
            layer(x)
    moments = [call.moments for calls in tape.calls.values() for call in calls]
    left, right = (
        torch.stack([(each.values * side).sum(-1).mean() / 2 for each, side in sides]).mean()
        for sides in ([(m, m.left) for m in moments], [(m, m.right) for m in moments])
    )
    trace = torch.stack([each.trace.mean() for each in moments]).mean()
    found = ksvd_parts(tape)
    assert_within(found, eager=torch.stack([left, right, trace]), oracle=torch.stack([left, right, trace]))
    assert not found.requires_grad


def test_parts_need_a_primal_layer() -> None:
    layer = SoftmaxAttention(8, heads=2)
    with record(layer) as tape:
        layer(points(1, 3, 8, dtype=torch.float32))
    with pytest.raises(BadInput, match="ksvd_parts: no primal layer was recorded; run the model inside"):
        ksvd_parts(tape)


@pytest.mark.slow
def test_two_processes_give_the_gradients_of_one(tmp_path: Path) -> None:
    net = PrimalAttention(8, heads=2, rank=3, landmarks=4).double()
    torch.save(net.state_dict(), tmp_path / "weights")
    multiprocessing.spawn(_process, (str(tmp_path),), nprocs=2)
    for reduction in ("batch", "sample"):
        net.zero_grad()
        with record(net) as tape:
            loss = net(points(4, 6, 8)).square().mean() + ksvd_penalty(tape, reduction=reduction)
        loss.backward()
        made = torch.load(tmp_path / reduction)
        for name, parameter in net.named_parameters():
            assert_exact(made[name], parameter.grad)
