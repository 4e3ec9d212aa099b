"""The primal kernels: in the interpreter everywhere, compiled where there is a GPU."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kernelhead.kernels import Cosine, Elu
from kernelhead.models import SequenceClassifier
from kernelhead.nn import PrimalAttention, ksvd_penalty, record
from kernelhead.ops.backends import primal_backend
from tests.inputs import keep, points

pytest.importorskip("triton", reason="the extra gpu is not installed")

from kernelhead.ops.triton.library import primal_core, traced_backward, traced_core, traced_landmarks
from kernelhead.ops.triton.parts import aligned, fill_rows
from kernelhead.ops.triton.primal import plan
from tests.ops.triton.cases import CASES, LANDMARKS, Case, Landmarks, check, check_join, check_landmarks
from tests.ops.triton.interpreter import interpreted

gpu = pytest.mark.gpu
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def test_the_interpreter_runs_the_same_kernels() -> None:
    assert interpreted("interpreted.py") == len(CASES) + 3 * len(LANDMARKS) + 21


@pytest.mark.long
def test_the_interpreter_runs_them_in_half_precision() -> None:
    assert interpreted("interpreted.py", "-m", "long") == len(CASES) - 5


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("sequences", [1, 64, 2048])
@pytest.mark.parametrize("n", [1, 17, 1024, 1025, 65_536, 1_048_576])
def test_a_plan_covers_all_points_once(n: int, sequences: int, size: int, backward: bool) -> None:
    made = plan(n, 64, 32, sequences=sequences, size=size, backward=backward)
    assert made.chunk % made.tile == 0
    assert made.chunk * (made.splits - 1) < n <= made.chunk * made.splits


def test_the_backend_is_eager_where_the_kernels_do_not_fit() -> None:
    x, small = torch.zeros(1, 2, 3, 4), (torch.zeros(2, 4, 2), torch.zeros(4, 4), torch.zeros(4))
    assert primal_backend(x, x, *small, Cosine(), None) == "eager"
    assert primal_backend(x, x, *small, Elu(), None) == "eager"


def test_rows_that_are_aligned_are_not_copied() -> None:
    both = torch.zeros(2, 5, 2, 3, 32, dtype=torch.float16)
    for view in (both, both[:, :, 1].transpose(1, 2), both[..., :16]):
        assert aligned(view) is view
    for apart in (both[..., :24], both[..., 1:17], torch.zeros(2, 50, dtype=torch.float16)[:, :16], both.mT):
        made = aligned(apart)
        assert made.data_ptr() != apart.data_ptr()
        assert made.shape[-1] % 16 == made.stride(-2) % 16 == 0
        assert torch.equal(made[..., : apart.shape[-1]], apart)
    odd = torch.zeros(33, dtype=torch.float16)[1:].view(2, 16)
    assert aligned(odd).data_ptr() != odd.data_ptr()
    short = torch.zeros(2, 3, 5)
    assert aligned(short) is short
    assert fill_rows(short, 3) is short
    assert fill_rows(short, 4).shape == (2, 4, 5)


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, dtype: torch.dtype) -> None:
    check(CASES[name], dtype, "cuda")


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("d", "s"),
    [(16, 1), (24, 20), (32, 30), (33, 31), (50, 20), (64, 1), (64, 64), (96, 33), (128, 20), (128, 128)],
)
def test_widths_and_ranks(d: int, s: int, dtype: torch.dtype) -> None:
    check(Case(n=300, d=d, s=s, masked=True, per_row=d < 64), dtype, "cuda")


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [41, 100])
def test_widths_that_fill_no_row(d: int, causal: bool, dtype: torch.dtype) -> None:
    check(Case(n=300, d=d, s=20, masked=True, strided=True, causal=causal), dtype, "cuda")


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_a_wider_tensor(dtype: torch.dtype) -> None:
    check(Case(n=300, d=64, s=20, apart=3), dtype, "cuda")


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("o", [1, 6, 40, 128])
def test_a_join_to_another_width(o: int, dtype: torch.dtype) -> None:
    check_join(o, dtype, "cuda")


@gpu
def test_folded_inference_on_the_gpu() -> None:
    layer, x = PrimalAttention(64, heads=2, rank=3, landmarks=5).cuda(), points(3, 600, 64).float().cuda()
    mask = keep([600, 400, 1], 600).cuda()
    expected = layer(x, mask=mask)
    with torch.no_grad():
        assert layer._folded(x) is not None
        torch.testing.assert_close(layer(x, mask=mask), expected, rtol=1e-4, atol=1e-5)


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LANDMARKS)
def test_weights_from_landmarks(name: str, dtype: torch.dtype) -> None:
    check_landmarks(LANDMARKS[name], dtype, "cuda")


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("d", "s"), [(24, 20), (33, 31), (64, 32), (128, 20), (128, 128)])
def test_widths_and_ranks_of_landmarks(d: int, s: int, dtype: torch.dtype) -> None:
    check_landmarks(Landmarks(batch=3, n=300, d=d, s=s, count=200, masked=True), dtype, "cuda")


@gpu
@pytest.mark.parametrize("name", LANDMARKS)
def test_landmarks_as_a_custom_op(name: str) -> None:
    (x, left, right), places = LANDMARKS[name].inputs(torch.float32, "cuda")
    given = (x.requires_grad_(), places, left.requires_grad_(), right.requires_grad_(), torch.float32)
    torch.library.opcheck(traced_landmarks, given)


@gpu
@pytest.mark.parametrize("n", [1, 1000, 4097])
def test_custom_op(n: int) -> None:
    inputs, mask = Case(n=n, masked=True).inputs(torch.float32, "cuda")
    inputs = [tensor.requires_grad_() for tensor in inputs]
    both = torch.stack([side.detach().transpose(1, 2) for side in inputs[:2]], dim=2).requires_grad_()
    for flags in ((True, False), (False, False), (True, True)):
        for points_of in (inputs[:2], [both, None]):
            torch.library.opcheck(traced_core, (*points_of, *inputs[2:], mask, *flags))
    pulls = torch.ones_like(inputs[2][..., 0, :])
    given = [tensor.detach() for tensor in inputs]
    torch.library.opcheck(traced_backward, (*given, mask, given[0], pulls, pulls, False))


@gpu
def test_packed_points_are_the_same_points() -> None:
    inputs, mask = Case(n=50, masked=True).inputs(torch.float32, "cuda")
    both = torch.stack([side.transpose(1, 2) for side in inputs[:2]], dim=2).requires_grad_()
    query, key = (side.clone().requires_grad_() for side in inputs[:2])
    one, other = (
        primal_core(both, None, *inputs[2:], mask, True, False),
        primal_core(query, key, *inputs[2:], mask, True, False),
    )
    assert all(map(torch.equal, one, other))
    grads = [torch.randn_like(each) for each in one]
    (packed,) = torch.autograd.grad(one, both, grads)
    apart = torch.autograd.grad(other, (query, key), grads)
    for place, expected in enumerate(apart):
        assert torch.equal(packed[:, :, place].transpose(1, 2), expected)


@gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("landmarks", [None, 5])
def test_the_layer_on_the_gpu_is_the_layer_on_the_cpu(landmarks: int | None, compiled: bool) -> None:
    module = PrimalAttention(32, heads=2, rank=3, landmarks=landmarks)
    x, mask = points(3, 40, 32, dtype=torch.float32), keep([40, 17, 0], 40)

    def run(module: PrimalAttention, device: str, forward: object) -> list[Tensor]:
        module.zero_grad()
        with record(module) as tape:
            output = forward(x.to(device), mask=mask.to(device))  # type: ignore[operator]
            (output.square().sum() + ksvd_penalty(tape)).backward()
        return [output.detach().cpu(), *(p.grad.clone().cpu() for p in module.parameters())]

    expected = run(module, "cpu", module)
    module.cuda()
    made = run(module, "cuda", torch.compile(module, fullgraph=True) if compiled else module)
    for one, other in zip(made, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@gpu
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_layer_is_captured_as_a_graph() -> None:
    module = PrimalAttention(32, heads=2, rank=3, landmarks=5).cuda()
    x = points(3, 40, 32, dtype=torch.float32).cuda()
    run = torch.cuda.make_graphed_callables(module, (x,), allow_unused_input=True)
    torch.testing.assert_close(run(x), module(x))


@gpu
def test_half_precision_by_autocast() -> None:
    module, x = (
        PrimalAttention(32, heads=2, rank=3, landmarks=5).cuda(),
        points(3, 40, 32, dtype=torch.float32).cuda(),
    )
    with torch.autocast("cuda", torch.bfloat16), record(module) as tape:
        output = module(x)
        (output.float().square().mean() + ksvd_penalty(tape)).backward()
    assert output.dtype == torch.bfloat16
    assert all(torch.isfinite(p.grad).all() for p in module.parameters())


def gradients(module: PrimalAttention, run: Callable[[], Tensor]) -> list[Tensor]:
    """Gradients of the layer's weights for a loss with the KSVD objective."""
    module.zero_grad()
    with record(module) as tape:
        (run().square().sum() + ksvd_penalty(tape)).backward()
    return [weight.grad.clone() for weight in module.parameters()]


@gpu
def test_checkpointing_gives_the_same_gradients() -> None:
    module = PrimalAttention(32, heads=2, rank=3, landmarks=5).cuda()
    x = points(3, 40, 32, dtype=torch.float32).cuda().requires_grad_()
    expected = gradients(module, lambda: module(x))
    made = gradients(module, lambda: checkpoint(module, x, use_reentrant=False))
    assert all(map(torch.equal, made, expected))


@gpu
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_ddp_gives_the_same_gradients() -> None:
    module = PrimalAttention(32, heads=2, rank=3, landmarks=5).cuda()
    x = points(3, 40, 32, dtype=torch.float32).cuda()
    expected = gradients(module, lambda: module(x))
    torch.distributed.init_process_group("nccl", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(module, device_ids=[0])
        made = gradients(module, lambda: wrapped(x))
    finally:
        torch.distributed.destroy_process_group()
    assert all(map(torch.equal, made, expected))


@gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_compiled_training_step_is_captured_as_a_graph() -> None:
    model = SequenceClassifier(3, vocabulary=8, width=32, heads=2, rank=3, landmarks=5).cuda()
    x, target = torch.arange(80).reshape(2, 40).cuda() % 8, torch.tensor([0, 2]).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True, capturable=True)
    losses = torch.zeros(2, device="cuda")

    @torch.compile(fullgraph=True)
    def loss() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16), record(model) as tape:
            return nn.functional.cross_entropy(model(x), target) + 0.1 * ksvd_penalty(tape)

    def step() -> None:
        optimiser.zero_grad()
        made = loss()
        made.backward()
        optimiser.step()
        losses[0] = made.detach()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    losses[1] = losses[0]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(20):
        graph.replay()
    assert losses[0] < losses[1]
