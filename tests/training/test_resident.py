"""fit_resident: it learns, repeats itself, and a captured step is the plain step."""

import pytest
import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, UnknownName
from kernelhead.models import SequenceClassifier
from kernelhead.training.resident import Course, fit_resident, scores_of
from tests.inputs import keep, points


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
    seen: list[dict[str, Tensor]] = []
    figures = iter([0.5, 0.9, 0.9, 0.1])

    def watch(net: nn.Module) -> float:
        seen.append({name: tensor.clone() for name, tensor in net.state_dict().items()})
        return next(figures)

    net = model()
    fitted = fit_resident(net, x, y, Course(14, 16, lr=0.01), watch=watch, every=4)
    assert fitted.watched == [0.5, 0.9, 0.9, 0.1]
    assert all(torch.equal(tensor, seen[1][name]) for name, tensor in net.state_dict().items())


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
    with pytest.raises(UnknownName, match=r"unknown precision '8'"):
        scores_of(model(), x, precision="8")


def test_another_optimiser_and_reduction() -> None:
    x, y = cases()
    fitted = fit_resident(
        model(), x, y, Course(60, 16, lr=0.01, eta=0.1, optimiser="radam", reduction="sample")
    )
    assert fitted.losses[-1] < fitted.losses[0]


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
