"""fit_resident: it learns, repeats itself, averages, ends early, and a captured step is the plain step."""

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, UnknownName
from kernelhead.models import SequenceClassifier
from kernelhead.training.course import Course
from kernelhead.training.resident import fit_resident, scores_of
from tests.inputs import keep, points
from tests.tolerance import assert_exact

Weights = dict[str, Tensor]


def cases(count: int = 48) -> tuple[Tensor, Tensor]:
    """Series whose class is the sign of their mean."""
    x = points(count, 6, 2, dtype=torch.float32)
    return x, (x.mean((1, 2)) > 0).long()


def model(attention: str = "primal") -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return SequenceClassifier(
            2, channels=2, width=16, heads=2, depth=1, rank=3, landmarks=4, attention=attention
        )


def kept(net: nn.Module) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}


def looking(seen: list[Weights], figures: Iterable[float]) -> Callable[[nn.Module], float]:
    """A watch that keeps what it is shown and says one figure after the other."""
    said = iter(figures)

    def watch(net: nn.Module) -> float:
        seen.append(kept(net))
        return next(said)

    return watch


def test_it_learns_and_repeats_itself() -> None:
    x, y = cases()
    course = Course(60, 16, lr=0.01, eta=0.1, seed=1)
    made = [(each, fit_resident(each, x, y, course)) for each in (model(), model())]
    assert made[0][1].losses == made[1][1].losses
    assert made[0][1].losses[-1] < 0.5 * made[0][1].losses[0]
    accuracy = (scores_of(made[0][0], x, batch=7).argmax(-1) == y).float().mean()
    assert accuracy > 0.9
    other = fit_resident(model(), x, y, Course(60, 16, lr=0.01, eta=0.1, seed=2))
    assert other.losses != made[0][1].losses


def test_dropout_comes_from_the_seed_and_leaves_the_global_generator() -> None:
    x, y = cases()

    def losses(state: int) -> list[float]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        torch.manual_seed(state)
        before = torch.random.get_rng_state()
        fitted = fit_resident(net, x, y, Course(5, 16))
        assert torch.equal(torch.random.get_rng_state(), before)
        return fitted.losses

    with torch.random.fork_rng():
        assert losses(1) == losses(2)


def test_the_penalty_is_part_of_the_loss() -> None:
    x, y = cases()
    first = [fit_resident(model(), x, y, Course(1, 16, eta=eta)).losses[0] for eta in (0.0, 1.0)]
    assert first[1] > first[0]
    # Without a primal layer there is nothing to penalise.
    first = [fit_resident(model("softmax"), x, y, Course(1, 16, eta=eta)).losses[0] for eta in (0.0, 1.0)]
    assert first[1] == first[0]


def test_every_case_is_seen_once_an_epoch() -> None:
    seen: list[int] = []

    def loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        seen.extend(y.tolist())
        return net(x).square().mean()

    x = points(20, 1, dtype=torch.float32)
    fit_resident(nn.Linear(1, 1), x, torch.arange(20), Course(10, 4), loss=loss)
    assert sorted(seen[:20]) == sorted(seen[20:]) == list(range(20))
    assert seen[:20] != seen[20:]


def test_several_inputs() -> None:
    x, y = cases()
    mask = keep([6, 3] * 24, 6)

    def loss(net: nn.Module, inputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(net(*inputs), targets)

    net = model()
    fit_resident(net, (x, mask), y, Course(5, 16), loss=loss)
    torch.testing.assert_close(scores_of(net, (x, mask), batch=10), net.eval()(x, mask))


def test_the_best_weights_stay() -> None:
    x, y = cases()
    seen: list[Weights] = []
    net = model()
    watch = looking(seen, [0.5, 0.9, 0.9, 0.1])
    fitted = fit_resident(net, x, y, Course(14, 16, lr=0.01), watch=watch, every=4)
    assert fitted.watched == [0.5, 0.9, 0.9, 0.1]
    assert fitted.steps == 14
    assert all(torch.equal(tensor, seen[1][name]) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("accumulate", [2, 4, 16])
def test_a_batch_in_parts_has_the_gradient_of_the_batch(accumulate: int, dtype: torch.dtype) -> None:
    x, y = cases()
    how = {"lr": 0.01, "eta": 0.1, "reduction": "sample", "clip": None}
    whole, parts = model().to(dtype), model().to(dtype)
    fit_resident(whole, x.to(dtype), y, Course(1, 16, **how))
    fit_resident(parts, x.to(dtype), y, Course(1, 16, **how, accumulate=accumulate))
    for (name, one), other in zip(whole.named_parameters(), parts.parameters(), strict=True):
        assert one.grad is not None, name
        assert other.grad is not None, name
        bound = 1e-12 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close(other.grad, one.grad, rtol=bound, atol=bound)


def test_a_course_in_parts_is_the_course() -> None:
    x, y = cases()
    nets = [model().double(), model().double()]
    fits = [
        fit_resident(net, x.double(), y, Course(9, 16, lr=0.01, accumulate=parts))
        for net, parts in zip(nets, (1, 4), strict=True)
    ]
    torch.testing.assert_close(torch.tensor(fits[1].losses), torch.tensor(fits[0].losses))
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert_exact(other.detach(), one.detach(), bound=1e-8)  # Adam divides by what may be small


def test_parts_are_all_of_a_batch() -> None:
    seen: list[list[int]] = []

    def loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        seen.append(y.tolist())
        return net(x).square().mean()

    x = points(12, 1, dtype=torch.float32)
    fit_resident(nn.Linear(1, 1), x, torch.arange(12), Course(2, 6, accumulate=3), loss=loss)
    assert [len(part) for part in seen] == [2] * 6
    assert sorted(case for part in seen for case in part) == list(range(12))


def test_the_average_follows_the_weights() -> None:
    x, y = cases()
    decay, steps = 0.3, 8
    runs: list[list[Weights]] = [[], []]
    nets = [model(), model()]
    for net, ema, seen in zip(nets, (0.0, decay), runs, strict=True):
        fit_resident(
            net, x, y, Course(steps, 16, lr=0.01, ema=ema), watch=looking(seen, range(steps)), every=1
        )
    plain, averaged = runs
    expected = kept(model())
    for t in range(steps):
        share = min(decay, (1 + t) / (10 + t))
        expected = {name: share * old + (1 - share) * plain[t][name] for name, old in expected.items()}
        for name, tensor in expected.items():
            torch.testing.assert_close(averaged[t][name], tensor, msg=f"{name} after step {t}")
    assert all(torch.equal(tensor, averaged[-1][name]) for name, tensor in kept(nets[1]).items())
    # With nothing to watch the last average stays.
    net = model()
    fit_resident(net, x, y, Course(steps, 16, lr=0.01, ema=decay))
    assert all(torch.equal(tensor, averaged[-1][name]) for name, tensor in kept(net).items())


def test_the_best_average_stays() -> None:
    x, y = cases()
    seen: list[Weights] = []
    net = model()
    watch = looking(seen, [0.1, 0.9, 0.5])
    fit_resident(net, x, y, Course(6, 16, lr=0.01, ema=0.9), watch=watch, every=2)
    assert all(torch.equal(tensor, seen[1][name]) for name, tensor in kept(net).items())


def test_buffers_are_not_averaged() -> None:
    x, y = cases()

    def trained(ema: float) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Linear(12, 2))
        fit_resident(net, x, y, Course(5, 16, lr=0.01, ema=ema))
        return net

    plain, averaged = trained(0.0), trained(0.9)
    assert all(map(torch.equal, plain.buffers(), averaged.buffers()))
    assert not any(map(torch.equal, plain.parameters(), averaged.parameters()))


def test_labels_are_smoothed() -> None:
    x, y = cases()
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    logs = net(x).log_softmax(-1).detach()
    right, spread = -logs.gather(1, y[:, None]).mean(), -logs.mean()
    fitted = fit_resident(net, x, y, Course(1, 48, smoothing=0.2))
    torch.testing.assert_close(torch.tensor(fitted.losses[0]), 0.8 * right + 0.2 * spread)


@pytest.mark.parametrize(("patience", "looks"), [(1, 3), (2, 6), (3, 7), (None, 7)])
def test_training_ends_when_nothing_gets_better(patience: int | None, looks: int) -> None:
    x, y = cases()
    figures = [0.5, 0.6, 0.6, 0.7, 0.1, 0.7, 0.2]
    seen: list[Weights] = []
    net = model()
    fitted = fit_resident(net, x, y, Course(14, 16), watch=looking(seen, figures), every=2, patience=patience)
    assert fitted.watched == figures[:looks]
    assert fitted.steps == len(fitted.losses) == 2 * looks
    best = seen[max(range(looks), key=figures.__getitem__)]
    assert all(torch.equal(tensor, best[name]) for name, tensor in kept(net).items())


def test_training_may_end_before_it_is_timed() -> None:
    x, y = cases()
    fitted = fit_resident(model(), x, y, Course(9, 16), watch=looking([], [1, 0]), every=1, patience=1)
    assert fitted.steps == 2
    assert fitted.steps_a_second == 0


def test_rates() -> None:
    cycle = Course(100, 1, lr=25.0, schedule="one_cycle", warmup=0.2).rates()
    assert cycle[0] < 2.5
    assert cycle[20] == cycle.max() == 25
    assert 0 < cycle[-1] < 0.5
    assert Course(5, 1, lr=2.0, schedule="constant", warmup=0).rates().tolist() == [2.0] * 5
    rates = Course(100, 1, lr=1.0, warmup=0.1).rates()
    assert rates[9] == rates[10] == rates.max() == 1
    assert rates[-1] < 0.01


def test_evaluation_leaves_the_mode() -> None:
    net = nn.Dropout(0.5)
    x = torch.ones(4, 2)
    assert torch.equal(scores_of(net, x), x)
    assert net.training


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"lr": 0.0}, BadInput, r"Course: lr is 0.0, warmup 0.05; expected above 0"),
        ({"warmup": 1.0}, BadInput, r"warmup 1.0"),
        ({"schedule": "step"}, UnknownName, r"unknown schedule 'step'"),
        ({"precision": "8"}, UnknownName, r"unknown precision '8'"),
        ({"optimiser": "sgd"}, UnknownName, r"unknown optimiser 'sgd'"),
        ({"reduction": "sum"}, UnknownName, r"unknown reduction 'sum'"),
        ({"steps": 0}, BadInput, r"steps"),
        ({"batch": 0}, BadInput, r"batch"),
        ({"accumulate": 0}, BadInput, r"accumulate is 0, expected a whole number of at least 1"),
        ({"batch": 8, "accumulate": 3}, BadInput, r"a batch of 8 does not split into 3 equal parts"),
        ({"eta": -1.0}, BadInput, r"Course: eta is -1.0, expected 0 or more"),
        ({"ema": 1.0}, BadInput, r"Course: ema is 1.0, expected from 0 to below 1"),
        ({"smoothing": -0.1}, BadInput, r"Course: smoothing is -0.1, expected from 0 to below 1"),
    ],
)
def test_a_course_that_cannot_be(options: dict[str, object], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        Course(**{"steps": 1, "batch": 1, **options})  # type: ignore[arg-type]


def test_what_is_refused() -> None:
    x, y = cases(8)
    with pytest.raises(BadInput, match=r"8 inputs and 7 targets"):
        fit_resident(model(), x, y[:7], Course(1, 4))
    with pytest.raises(BadInput, match=r"at least a batch of 16"):
        fit_resident(model(), x, y, Course(1, 16))
    with pytest.raises(BadInput, match=r"the loss is nan after 2 steps"):
        fit_resident(model(), x * float("nan"), y, Course(2, 4))
    with pytest.raises(BadInput, match=r"patience is 2, but there is nothing to watch"):
        fit_resident(model(), x, y, Course(1, 4), patience=2)
    with pytest.raises(BadInput, match=r"patience is 0, expected a whole number of at least 1"):
        fit_resident(model(), x, y, Course(1, 4), watch=lambda _: 0.0, patience=0)
    with pytest.raises(UnknownName, match=r"unknown precision '8'"):
        scores_of(model(), x, precision="8")


def test_another_optimiser_and_reduction() -> None:
    x, y = cases()
    fitted = fit_resident(
        model(), x, y, Course(60, 16, lr=0.01, eta=0.1, optimiser="radam", reduction="sample")
    )
    assert fitted.losses[-1] < fitted.losses[0]


@pytest.mark.parametrize(("precision", "inside"), [("32", "highest"), ("tf32", "high")])
def test_how_products_are_rounded_is_set_for_a_step_alone(precision: str, inside: str) -> None:
    x, y = cases()
    seen = []

    def loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        seen.append(torch.get_float32_matmul_precision())
        return nn.functional.cross_entropy(net(x), y)

    fit_resident(model(), x, y, Course(2, 16, precision=precision), loss=loss)
    assert seen == [inside, inside]
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("optimiser", ["adamw", "radam"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_captured_course_is_the_plain_course(compiled: bool, optimiser: str) -> None:
    x, y = cases()
    course = Course(12, 16, lr=0.01, eta=0.1, optimiser=optimiser)
    expected = fit_resident(model(), x, y, course).losses
    made = fit_resident(model().cuda(), x.cuda(), y.cuda(), course, compiled=compiled).losses
    torch.testing.assert_close(torch.tensor(made), torch.tensor(expected), rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_captured_step_accumulates_averages_and_ends_early(compiled: bool) -> None:
    x, y = cases()
    # A larger epsilon, so that rounding in a gradient near zero is no step of its own.
    course = Course(
        20, 16, lr=0.01, eta=0.1, reduction="sample", epsilon=1e-3, accumulate=4, ema=0.9, smoothing=0.1
    )
    made = []
    for device in ("cpu", "cuda"):
        net, seen = model().to(device), list[Weights]()
        fitted = fit_resident(
            net,
            x.to(device),
            y.to(device),
            course,
            compiled=compiled and device == "cuda",
            watch=looking(seen, [0.1, 0.2, 0.3, 0.0, 0.0, 0.9]),
            every=3,
            patience=2,
        )
        assert fitted.steps == 15
        assert all(torch.equal(tensor, seen[2][name]) for name, tensor in kept(net).items())
        made.append((torch.tensor(fitted.losses), scores_of(net, x.to(device)).cpu()))
    for plain, captured in zip(*made, strict=True):
        torch.testing.assert_close(captured, plain, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_captured_course_in_parts_is_the_course() -> None:
    x, y = (each.cuda() for each in cases())
    made = [
        fit_resident(model().cuda(), x, y, Course(12, 16, lr=0.01, accumulate=parts), compiled=False).losses
        for parts in (1, 4)
    ]
    torch.testing.assert_close(torch.tensor(made[1]), torch.tensor(made[0]), rtol=1e-3, atol=1e-4)


def test_lessons_show_their_cases_one_after_another() -> None:
    x, y = torch.arange(9.0)[:, None], torch.zeros(9, dtype=torch.long)
    seen: list[set[float]] = []

    def loss(net: nn.Module, shown: Tensor, targets: Tensor) -> Tensor:
        seen.append(set(shown.flatten().tolist()))
        return nn.functional.cross_entropy(net(shown), targets)

    lessons = [(0, torch.tensor([4, 5])), (64, torch.tensor([8])), (128, torch.arange(3))]
    made = fit_resident(nn.Linear(1, 2), x, y, Course(150, 4), loss=loss, lessons=lessons)
    assert made.steps == 150
    assert set().union(*seen[:64]) == {4.0, 5.0}
    assert set().union(*seen[64:128]) == {8.0}
    assert set().union(*seen[128:]) == {0.0, 1.0, 2.0}


def test_runs_with_lessons_repeat_themselves_and_take_their_seed() -> None:
    x, y = cases()
    lessons = [(0, torch.arange(24)), (64, torch.arange(48))]
    first, same, other = (
        fit_resident(model(), x, y, Course(80, 16, seed=seed), lessons=lessons).losses for seed in (1, 1, 2)
    )
    assert first == same
    assert first != other


@pytest.mark.parametrize(
    "lessons",
    [
        [(1, torch.arange(2))],
        [(0, torch.arange(2)), (0, torch.arange(2))],
        [(0, torch.tensor([48]))],
        [(0, torch.tensor([-1]))],
        [(0, torch.arange(0))],
    ],
)
def test_lessons_out_of_order_or_without_cases_are_refused(lessons: list[tuple[int, Tensor]]) -> None:
    with pytest.raises(BadInput, match=r"fit_resident: lessons begin at .* places of the 48 cases"):
        fit_resident(model(), *cases(), Course(4, 16), lessons=lessons)
