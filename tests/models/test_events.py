"""EventModel: every encoding, attention and mix; padding, lags in float64, and words."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.models import ATTENTIONS, ENCODINGS, EventModel
from kernelhead.nn import record
from kernelhead.rng import seeded
from tests.inputs import points
from tests.tolerance import assert_exact

SMALL: dict[str, Any] = {"width": 8, "time_width": 8, "heads": 2, "longest": 6, "rank": 2, "landmarks": 4}


def made(**options: Any) -> EventModel:
    with seeded(0):
        return EventModel(4, 3, **(SMALL | options)).double()


def batch(b: int = 2, n: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    types = torch.randint(4, (b, n), generator=torch.Generator().manual_seed(0))
    times = points(b, n).abs().cumsum(1)
    return types, times, times[:, -1] + 1


@pytest.mark.parametrize("time", ENCODINGS)
@pytest.mark.parametrize("attention", ["softmax", "primal"])
def test_every_encoding(time: str, attention: str) -> None:
    model = made(time=time, attention=attention, time_width=12 if time == "mercer" else 8, harmonics=1)
    if time == "mercer":
        assert model.blocks[0].attention.time.log_period.shape == (4,)
    scores = model(*batch())
    assert scores.shape == (2, 3)
    scores.sum().backward()
    moved = {name for name, weight in model.named_parameters() if weight.grad is not None}
    rest = {name for name, _ in model.named_parameters()} - moved
    assert {name.split(".")[-1] for name in rest} <= {"root"}


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_attention(attention: str) -> None:
    assert made(attention=attention)(*batch()).shape == (2, 3)


@pytest.mark.parametrize("mix", ["concatenate", "add", "multiply"])
@pytest.mark.parametrize("time", ["bochner", "position"])
def test_padding_anywhere_has_no_influence(mix: str, time: str) -> None:
    model, (types, times, asked) = made(mix=mix, time=time, depth=2), batch(1, 4)
    bare = model(types, times, asked)
    for front in (0, 1, 2):
        wide = torch.full((1, 6), 3), torch.full((1, 6), float("nan")).double()
        mask = torch.zeros(1, 6, dtype=torch.bool)
        wide[0][:, front : front + 4], wide[1][:, front : front + 4] = types, times
        mask[:, front : front + 4] = True
        assert_exact(model(*wide, asked, mask), bare)


@pytest.mark.parametrize("time", ["bochner", "mercer", "published_mercer", "scalar"])
def test_only_lags_count_at_any_epoch(time: str) -> None:
    options = {"time_width": 33} if time == "mercer" else {"time_width": 32}
    with seeded(0):
        model = EventModel(4, 3, time=time, unit="seconds", periods=(6.0, 1e8), **options, heads=1)
    types, times, asked = batch()
    times, asked = (times * 64).round(), (asked * 64).round()
    late = 2.0**31
    assert torch.allclose(model(types, times + late, asked + late), model(types, times, asked), atol=1e-6)


def test_the_question_sees_the_time() -> None:
    model, (types, times, asked) = made(), batch()
    assert not torch.allclose(model(types, times, asked), model(types, times, asked + 1))
    blind = made(time="none")
    assert torch.equal(blind(types, times, asked), blind(types, times, asked + 1))


def test_the_tape_reads_it() -> None:
    model = made(attention="softmax,primal", depth=2)
    with record(model, patterns=True) as tape:
        model(*batch())
    assert tape.last("blocks.0.attention").pattern.shape == (2, 2, 7, 7)
    assert tape.last("blocks.1.attention").moments is not None
    assert len(tape) == 2


def test_words() -> None:
    with pytest.raises(
        UnknownName, match="EventModel: unknown time encoding 'bochnr', did you mean 'bochner'"
    ):
        made(time="bochnr")
    with pytest.raises(BadInput, match="EventModel: types is 0"):
        EventModel(0, 3)
    types, times, asked = batch()
    with pytest.raises(
        BadInput, match=r"`types` is torch\.float64 of shape \(2, 6\), expected whole numbers"
    ):
        made()(types.double(), times, asked)
    with pytest.raises(ShapeError, match="axis `n` is 6 in `types` but 5 in `times`"):
        made()(types, times[:, :5], asked)
    with pytest.raises(BadInput, match=r"`mask` is torch\.int64"):
        made()(types, times, asked, types)
