"""What every host promises with a graft: one suite, one line a host in `tests/surgery/hosts.py`."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelhead.surgery import graft, grafts, load, restore, save
from tests.surgery.hosts import CORES, HOSTS, built, inputs, output, put
from tests.tolerance import assert_exact

hosts = pytest.mark.parametrize("host", HOSTS)
cores = pytest.mark.parametrize("core", CORES)


def grafted(host: str, core: str, *, where: str = "all", seed: int = 0) -> nn.Module:
    model = built(host)
    put(model, core, where, seed=seed)
    return model


def state_of(model: nn.Module) -> dict[str, Any]:
    """All that a restore must bring back, but for the weights."""
    flags = ("_qkv_same_embed_dim", "use_nested_tensor", "training")
    state: dict[str, Any] = {name: weight.requires_grad for name, weight in model.named_parameters()}
    for path, module in model.named_modules():
        config = getattr(module, "config", None)
        state[path] = [type(module), id(config), getattr(config, "_attn_implementation", None)]
        state[path] += [getattr(module, flag, None) for flag in flags]
    return state


@hosts
def test_softmax_changes_nothing_beyond_rounding(host: str) -> None:
    model = built(host)
    before = output(model, inputs(host))
    graft(model, "softmax", "all")
    assert_exact(output(model, inputs(host)), before)


@hosts
@cores
def test_the_core_is_called_and_changes_the_output(host: str, core: str) -> None:
    model, given = built(host), inputs(host)
    before = output(model, given)
    report = put(model, core, "last")
    calls: list[Tensor] = []
    model.get_submodule(f"{report.done[0].path}.kernelhead").register_forward_hook(
        lambda module, args, found: calls.append(found)
    )
    after = output(model, given)
    assert len(calls) == 1
    if core != "softmax":
        assert bool(((after - before).abs() > 1e-6).any())


@hosts
@cores
@pytest.mark.parametrize("masked", [False, True], ids=["bare", "padded"])
def test_training_and_evaluation_agree(host: str, core: str, masked: bool) -> None:
    model, given = grafted(host, core), inputs(host, masked=masked)
    with torch.no_grad():
        evaluated = output(model, given, masked=masked)
    assert_exact(output(model.train(), given, masked=masked), evaluated)


@pytest.mark.parametrize("host", [name for name, host in HOSTS.items() if host.pads])
@cores
def test_garbage_in_the_padding_changes_nothing(host: str, core: str) -> None:
    model = grafted(host, core)
    clean, dirty = (output(model, inputs(host, garbage=seed)) for seed in (0, 1))
    assert torch.equal(clean, dirty)


@hosts
@cores
def test_gradients_reach_what_is_not_frozen(host: str, core: str) -> None:
    model = grafted(host, core)
    output(model, inputs(host)).square().sum().backward()
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    missing = {name for name, weight in trained.items() if weight.grad is None}
    # What a host does not use of itself, and the values that only the penalty reads.
    own = built(host)
    output(own, inputs(host)).square().sum().backward()
    missing -= {name for name, weight in own.named_parameters() if weight.grad is None}
    assert missing == {f"{path}.kernelhead.root" for path in grafts(model) if core == "landmarks"}
    for path in grafts(model):
        weights = [*model.get_submodule(f"{path}.kernelhead").parameters()]
        assert all(bool(weight.grad.isfinite().all()) for weight in weights if weight.grad is not None)


@hosts
@cores
def test_restore_is_exact(host: str, core: str) -> None:
    model, given = built(host), inputs(host)
    before, weights, state = output(model, given), copy.deepcopy(model.state_dict()), state_of(model)
    put(model, core, "all")
    output(model, given)
    report = restore(model)
    assert len(report.done) == (
        1 if host == "torch_layer" else 4 if (host, core) == ("torch_decoder", "softmax") else 2
    )
    assert torch.equal(output(model, given), before)
    assert [*model.state_dict()] == [*weights]
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    assert state_of(model) == state
    assert grafts(model) == {}


@hosts
@cores
def test_saved_and_loaded_into_a_fresh_host(host: str, core: str, tmp_path: Path) -> None:
    model, fresh, given = grafted(host, core, where="last"), built(host), inputs(host)
    save(model, tmp_path / "graft.safetensors")
    report = load(fresh, tmp_path / "graft.safetensors")
    assert torch.equal(output(fresh, given), output(model, given))
    assert report.done == tuple(grafts(model).values())


@hosts
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deepcopy", "pickle"]
)
def test_a_copy_answers_alike_and_stands_alone(host: str, copied: Callable[[nn.Module], nn.Module]) -> None:
    model, given = grafted(host, "primal"), inputs(host)
    before = output(model, given)
    twin = copied(model)
    assert torch.equal(output(twin, given), before)
    restore(twin)
    assert torch.equal(output(twin, given), output(built(host), given))
    assert torch.equal(output(model, given), before)


@hosts
def test_the_same_again_is_no_change_and_another_core_replaces(host: str) -> None:
    model, given = grafted(host, "primal"), inputs(host)
    before, paths = output(model, given), tuple(grafts(model))
    again = graft(model, "primal", "all", rank=3)
    assert (again.done, again.unchanged) == ((), paths)
    assert torch.equal(output(model, given), before)
    other = graft(model, "rpc", "all")
    assert other.replaced == paths
    assert torch.equal(output(model, given), output(grafted(host, "rpc"), given))


@hosts
def test_a_dry_run_changes_nothing(host: str) -> None:
    model = built(host)
    state, weights = state_of(model), [*model.state_dict()]
    report = graft(model, "primal", "all", rank=3, dry_run=True)
    assert report.dry_run
    assert report.done
    assert [*model.state_dict()] == weights
    assert state_of(model) == state
    assert grafts(model) == {}


@hosts
def test_precision_and_mode_are_those_of_the_host(host: str) -> None:
    model = built(host).bfloat16().train()
    graft(model, "primal", "last", rank=3)
    (path,) = grafts(model)
    core = model.get_submodule(f"{path}.kernelhead")
    assert core.training
    assert {weight.dtype for weight in core.parameters()} == {torch.bfloat16}
