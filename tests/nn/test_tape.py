"""record: what it keeps, through which wrappers, and that nothing stays."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kernelhead.errors import BadInput
from kernelhead.nn import PrimalAttention, SoftmaxAttention, ksvd_penalty, record
from kernelhead.nn.base import AbstractRecorded, Attended
from kernelhead.nn.heads import merge_heads, split_heads
from kernelhead.pattern import Dense
from tests.inputs import keep, points


class Net(nn.Module):
    """Two attentions, each under activation checkpointing if asked."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first = PrimalAttention(8, heads=2, rank=3, landmarks=4)
            self.second = PrimalAttention(8, heads=2, rank=3, landmarks=3, causal=True)
        self.reentrant = reentrant
        self.double()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for module in (self.first, self.second):
            if self.reentrant is None:
                x = x + module(x, mask=mask)
            else:
                run = lambda x, module=module: module(x, mask=mask)  # noqa: E731
                x = x + checkpoint(run, x, use_reentrant=self.reentrant)
        return x


def gradients(net: nn.Module, run: nn.Module | None = None, *, inside: bool = True) -> dict[str, Tensor]:
    """Of the squared output and the penalty, with the backward pass inside or after the block."""
    run = net if run is None else run
    x, mask = points(3, 6, 8).requires_grad_(), keep([6, 4, 2], 6)
    net.zero_grad()
    with record(net) as tape:
        loss = run(x, mask).square().mean() + ksvd_penalty(tape, reduction="batch")
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    return {name: p.grad.clone() for name, p in net.named_parameters()}


def test_what_is_kept() -> None:
    net = Net()
    with record(net) as tape:
        net(points(2, 5, 8))
    assert list(tape.calls) == ["first", "second"]
    assert len(tape) == 2
    assert tape.last("first").moments.left.shape == (2, 2, 3)
    assert tape.last("first").pattern is None
    with record(net, patterns=True) as tape:
        net(points(2, 5, 8))
        net(points(2, 4, 8))
    assert [call.pattern.shape for call in tape.calls["second"]] == [(2, 2, 5, 5), (2, 2, 4, 4)]
    assert tape.last("second").kernel.shape == (2, 2, 4, 4)
    tape.clear()
    assert len(tape) == 0


def test_nothing_is_left_behind() -> None:
    net = Net()
    before = {name: dict(module.__dict__) for name, module in net.named_modules()}
    with pytest.raises(BadInput, match="expected"), record(net):
        net(points(2, 5, 7))
    with record(net):
        net(points(2, 5, 8))
    for name, module in net.named_modules():
        assert module.__dict__.keys() == before[name].keys()
    assert net.first.recording == "off"
    assert net.first.recorded is None


def test_outside_a_block_no_moment_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("moments were computed")

    monkeypatch.setattr("kernelhead.nn.primal.primal_attention_moments", refuse)
    net = Net()
    net(points(2, 5, 8))
    with pytest.raises(AssertionError, match="moments were computed"), record(net):
        net(points(2, 5, 8))


@pytest.mark.parametrize("inside", [True, False])
def test_checkpointing_gives_the_same_gradients(inside: bool) -> None:
    plain, saved = gradients(Net()), gradients(Net(reentrant=False), inside=inside)
    assert all(torch.equal(plain[name], saved[name]) for name in plain)


def test_reentrant_checkpointing_is_refused() -> None:
    with pytest.raises(BadInput, match=r"the moments of 'first' carry no gradient.*use_reentrant=False"):
        gradients(Net(reentrant=True))


@pytest.mark.plain
@pytest.mark.slow
def test_compiling_gives_the_same_gradients_in_one_graph() -> None:
    torch._dynamo.reset()
    # What other tests of this process compiled does not count.
    torch._dynamo.utils.counters.clear()
    net = Net()
    plain = gradients(net)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        made = gradients(net, compiled)
        assert all(torch.allclose(plain[name], made[name], atol=1e-12) for name in plain)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()


@pytest.mark.plain
@pytest.mark.slow
def test_a_loss_with_its_penalty_compiles_as_one_graph() -> None:
    torch._dynamo.reset()
    net, x = Net(), points(2, 5, 8)

    def loss() -> Tensor:
        with record(net) as tape:
            return net(x).square().mean() + ksvd_penalty(tape)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    plain, made = (
        torch.autograd.grad(each(), list(net.parameters()), allow_unused=True) for each in (loss, compiled)
    )
    for one, other in zip(plain, made, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other, atol=1e-12)
    assert all(module.recorded is None for module in (net.first, net.second))
    torch._dynamo.reset()


def test_paths_do_not_show_wrappers() -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    with record(Wrapper(nn.ModuleDict({"inner": Net()}))) as tape:
        pass
    assert list(tape.calls) == ["inner.first", "inner.second"]


def test_a_path_that_looks_like_a_wrapper_loses_no_layer() -> None:
    model = nn.ModuleDict(
        {"first": SoftmaxAttention(8, heads=2), "module": nn.ModuleDict(dict(Net().named_children()))}
    )
    with record(model) as tape:
        pass
    assert list(tape.calls) == ["first", "module.first", "second"]


def test_words() -> None:
    with pytest.raises(BadInput, match="Linear has no attention of kernelhead"), record(nn.Linear(2, 2)):
        pass
    net = Net()
    with record(net) as tape, pytest.raises(BadInput, match="'first' is being recorded already"), record(net):
        pass
    with pytest.raises(BadInput, match="nothing was recorded at 'first'"):
        tape.last("first")
    softmax = SoftmaxAttention(8, heads=2)
    with record(softmax) as tape:
        softmax(torch.zeros(1, 2, 8))
    with pytest.raises(BadInput, match="no primal layer was recorded"):
        ksvd_penalty(tape)


def test_a_copy_made_while_recording_is_not_recorded() -> None:
    net = Net()
    with record(net):
        net(points(2, 5, 8))
        twin = copy.deepcopy(net)
    assert twin.first.recording == "off"
    with record(twin) as tape:
        twin(points(2, 5, 8))
    assert len(tape) == 2


class Core(AbstractRecorded):
    """What a graft puts into a host: the mean of the values."""

    def forward(self, value: Tensor) -> Tensor:
        flat = value.new_full((*value.shape[:-1], value.shape[-2]), 1 / value.shape[-2])
        output = flat @ value
        self._note(Attended(output, pattern=Dense(flat) if self._kept() == "patterns" else None))
        return output


class Grafted(nn.MultiheadAttention):
    """A host with a core of ours."""

    def __init__(self) -> None:
        super().__init__(8, 2, batch_first=True)
        self.kernelhead = Core()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: object) -> tuple[Tensor, None]:
        return merge_heads(self.kernelhead(split_heads(value, 2))), None


def hosted(*, grafted: bool = False) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, bias=False)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).double()
    if grafted:
        model.layers[1].self_attn = Grafted()
    return model


PATHS = [f"layers.{layer}.self_attn" for layer in range(3)]


@pytest.mark.parametrize("training", [True, False])
def test_hosts_are_recorded(training: bool) -> None:
    model, x = hosted().train(training), points(2, 5, 8)
    with record(model) as tape:
        model(x)
    assert list(tape.calls) == list(tape.modules) == PATHS
    assert tape.modules[PATHS[0]] is model.layers[0].self_attn
    assert tape.last(PATHS[0]).pattern is None
    assert tape.last(PATHS[0]).output.shape == (2, 5, 8)
    with record(model, patterns=True) as tape:
        model(x, src_key_padding_mask=~keep([5, 3], 5))
        model(x)
    assert len(tape) == 6
    first, second = tape.calls[PATHS[2]]
    assert float(first.pattern.matrix()[1, :, :, 3:].sum()) == 0
    assert second.pattern.matrix().sum(-1).allclose(torch.ones((), dtype=torch.float64))
    assert "forward" not in vars(model.layers[0].self_attn)


def test_an_output_of_a_host_carries_its_gradient() -> None:
    model = hosted()
    with record(model, patterns=True) as tape:
        model(points(2, 5, 8))
    tape.last(PATHS[0]).output.sum().backward()
    assert model.layers[0].self_attn.in_proj_weight.grad is not None
    assert not tape.last(PATHS[0]).pattern.matrix().requires_grad


@pytest.mark.parametrize("patterns", [False, True])
def test_a_host_with_a_graft_has_one_entry_a_layer(patterns: bool) -> None:
    model = hosted(grafted=True)
    with record(nn.ModuleDict({"module": model}), patterns=patterns) as tape:
        model(points(2, 5, 8))
    assert list(tape.calls) == PATHS
    assert tape.modules[PATHS[1]] is model.layers[1].self_attn.kernelhead
    assert [len(calls) for calls in tape.calls.values()] == [1, 1, 1]
    assert [(tape.last(path).pattern is not None) for path in PATHS] == [patterns] * 3
    assert tape.last(PATHS[1]).output.shape == (2, 2, 5, 4)
    assert model.layers[1].self_attn.kernelhead.recorded is None


def test_hosts_and_ours_in_one_model() -> None:
    model = nn.ModuleList(
        [nn.MultiheadAttention(8, 2), SoftmaxAttention(8, heads=2), nn.MultiheadAttention(8, 2)]
    )
    with record(model) as tape:
        pass
    assert list(tape.calls) == ["0", "1", "2"]


def test_an_attention_that_is_called_kernelhead_is_no_graft() -> None:
    with record(nn.ModuleDict({"kernelhead": SoftmaxAttention(8, heads=2)})) as tape:
        pass
    assert list(tape.calls) == ["kernelhead"]


def test_what_was_looked_for_is_said() -> None:
    with pytest.raises(BadInput, match=r"looked for .*nn\.MultiheadAttention"), record(nn.Linear(2, 2)):
        pass
