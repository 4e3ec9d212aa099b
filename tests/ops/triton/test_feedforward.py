"""A feed-forward and looked up tokens by kernels: interpreted everywhere, compiled where there is a GPU."""

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="the extra gpu is not installed")

from kernelhead.models import SequenceClassifier
from kernelhead.models.blocks import Block
from kernelhead.nn import LocalMixing
from kernelhead.ops import feed_forward, look_up
from kernelhead.ops.backends import feed_forward_backend, lookup_backend
from kernelhead.ops.eager import feedforward as eager
from tests.inputs import points
from tests.ops.triton import feedforward_cases, lookup_cases
from tests.ops.triton.interpreter import interpreted
from tests.tolerance import assert_within

CASES, KINDS = feedforward_cases.CASES, (torch.float16, torch.bfloat16)
DTYPES = (torch.float32, *KINDS)


@pytest.mark.slow
def test_the_interpreter_runs_the_same_kernels() -> None:
    assert interpreted("interpreted_feedforward.py") == len(CASES) + 2 * len(lookup_cases.CASES) + 5


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, kind: torch.dtype) -> None:
    feedforward_cases.check(CASES[name], kind, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", lookup_cases.CASES)
def test_gathered(name: str, dtype: torch.dtype) -> None:
    lookup_cases.check(lookup_cases.CASES[name], dtype, "cuda")


@pytest.mark.gpu
def test_which_points_fit() -> None:
    x, weight = torch.zeros(3, 16, device="cuda"), torch.zeros(32, 16, device="cuda")
    assert feed_forward_backend(x, weight) == "eager"
    assert feed_forward_backend(x, weight.bfloat16()) == "triton"
    with torch.autocast("cuda", torch.float16):
        assert feed_forward_backend(x, weight) == "triton"
        assert feed_forward_backend(x.double(), weight) == "eager"
        assert feed_forward_backend(x[:0], weight) == "eager"
        assert feed_forward_backend(x.cpu(), weight) == "eager"
        for shape in ((32, 8), (24, 16), (256, 16), (128, 128)):
            assert feed_forward_backend(x.new_zeros(3, shape[1]), x.new_zeros(shape)) == "eager"
    table, tokens = x.clone().requires_grad_(), torch.zeros(4, dtype=torch.int64, device="cuda")
    assert lookup_backend(table, tokens) == "triton"
    assert lookup_backend(x, tokens) == "eager"
    assert lookup_backend(table, tokens[:0]) == "eager"
    assert lookup_backend(table.detach().repeat(400, 1).requires_grad_(), tokens) == "eager"


@pytest.mark.gpu
def test_the_doors_take_the_kernels() -> None:
    case = CASES["several tiles"]
    x, *weights = case.inputs(torch.bfloat16, "cuda")
    pairs = (*weights[:2],), (*weights[2:4],), (*weights[4:],)
    exact = eager.feed_forward(
        x.double(), *([part.double() for part in pair] for pair in pairs), None, 0.0, 1e-5
    )
    with torch.autocast("cuda", torch.bfloat16):
        plain, made = eager.feed_forward(x, *pairs, None, 0.0, 1e-5), feed_forward(x, *pairs)
        torch.manual_seed(3)
        thin = feed_forward(x, *pairs, dropout=0.5)
        torch.manual_seed(3)
        again = feed_forward(x, *pairs, dropout=0.5)
    assert_within(made, eager=plain, oracle=exact)
    assert torch.equal(thin, again)
    assert 0.2 < float((thin == x).float().mean()) < 0.8
    table = points(9, 5, dtype=torch.float32).cuda().requires_grad_()
    look_up(table, torch.tensor([[1, 1], [8, 0]], device="cuda")).sum().backward()
    assert table.grad is not None
    assert table.grad[:, 0].tolist() == [1, 2, 0, 0, 0, 0, 0, 0, 1]


@pytest.mark.gpu
def test_a_block_that_is_looked_into_does_without() -> None:
    torch.manual_seed(0)
    block = Block(None, inner=32, local=LocalMixing(16, taps=3)).cuda().eval()
    x = points(2, 9, 16, dtype=torch.float32).cuda()
    seen: list[torch.Tensor] = []
    with torch.autocast("cuda", torch.bfloat16):
        made = block(x)
        block.feed_forward[0].register_forward_hook(lambda _, __, out: seen.append(out))
        looked = block(x)
    assert len(seen) == 1
    plain = block.cpu()(x.cpu()).cuda()
    assert_within(made, eager=looked, oracle=plain)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_classifier_under_autocast(compiled: bool) -> None:
    torch.manual_seed(0)
    sizes = {"vocabulary": 50, "width": 32, "inner": 64, "heads": 2, "rank": 4, "landmarks": 8}
    net = SequenceClassifier(3, **sizes, dropout=0.2)  # type: ignore[arg-type]
    tokens, target = torch.arange(180).view(2, 90) % 50, torch.tensor([0, 2])

    def grads(model: nn.Module, where: str, kind: torch.dtype | None) -> list[torch.Tensor]:
        run = torch.compile(model, fullgraph=True) if compiled and where == "cuda" else model
        model.zero_grad()
        with torch.autocast(where, kind, enabled=kind is not None):
            made = nn.functional.cross_entropy(run(tokens.to(where)), target.to(where))
        made.backward()
        # Copies: what is cast or moved takes its gradients along.
        return [
            made.detach().cpu(),
            *(each.grad.cpu().clone() for each in model.parameters() if each.grad is not None),
        ]

    net.eval()
    oracle = grads(net.double(), "cpu", None)
    plain = grads(net.float(), "cpu", torch.bfloat16)
    actual = grads(net.cuda(), "cuda", torch.bfloat16)
    for each, eagerly, exact in zip(actual, plain, oracle, strict=True):
        bound = 2 * float((eagerly - exact).norm()) + 2**-7 * float(exact.norm()) + 1e-6
        assert float((each - exact).norm()) <= bound
    thinned = grads(net.train(), "cuda", torch.bfloat16)
    assert all(each.isfinite().all() for each in thinned)
