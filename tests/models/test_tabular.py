"""TableModel: its definition, its laws over rows and missing entries, contexts, released weights, words."""

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.models import TableModel, released_weights
from kernelhead.models import tabular as module
from kernelhead.models.tabular import PRESETS
from kernelhead.nn.datapoints import ROW_ATTENTIONS
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.oracles import datapoints as oracle
from tests.tolerance import assert_exact

WIDTHS, KINDS = [1, 3, 1], [False, True, False]
rows = pytest.mark.parametrize("attention", ROW_ATTENTIONS)
presets = pytest.mark.parametrize("preset", PRESETS)


def made(
    attention: str = "softmax", preset: str = "norm_all", *, seed: int = 0, depth: int = 4
) -> TableModel:
    with seeded(seed):
        return TableModel(
            WIDTHS,
            categorical=KINDS,
            width=4,
            depth=depth,
            heads=2,
            attention=attention,
            preset=preset,
            rank=3,
            inducing=4,
        ).double()


def table(batch: int, count: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    return points(batch, count, 5, seed=seed), points(batch, count, 3, seed=seed + 1) > 0.8


@presets
def test_it_is_the_definition(preset: str) -> None:
    model, (values, missing) = made(preset=preset), table(2, 6)
    chosen = PRESETS[preset]
    wanted = oracle.table_model(
        values[1],
        missing[1],
        model.state_dict(),
        widths=WIDTHS,
        categorical=KINDS,
        depth=4,
        heads=2,
        norm=chosen.norm,
        epsilon=chosen.epsilon,
    )
    found = model(values, missing)
    for actual, expected in zip(found, wanted, strict=True):
        assert_exact(actual[1], expected)


@presets
def test_single_precision_agrees_to_1e_5(preset: str) -> None:
    model, (values, missing) = made(preset=preset), table(1, 20)
    with torch.no_grad():
        exact = torch.cat(model(values, missing), dim=-1)
        found = torch.cat(model.float()(values.float(), missing), dim=-1)
    assert float((found - exact).abs().max()) < 1e-5


def test_weights_of_the_released_model_have_their_place() -> None:
    model = made(preset="published")
    theirs = {}
    for name, weight in model.state_dict().items():
        place = name.replace("unembed.", "out_embedding.").replace("embed.", "in_embedding.")
        place = "feature_index_embedding.weight" if name == "column" else place
        place = "feature_type_embedding.weight" if name == "kind" else place
        for number in range(4):
            for key, ours in module.RELEASED.items():
                if name.startswith(f"blocks.{number}.{ours}."):
                    end = name.removeprefix(f"blocks.{number}.{ours}")
                    place = f"enc.{2 * number + 1}.mab.{key}{end}"
        theirs[place] = weight
    assert not any("block" in name for name in theirs)
    other = made(preset="published", seed=1)
    other.load_state_dict(released_weights(theirs, 4))
    given = table(1, 5)
    assert all(map(torch.equal, other(*given), model(*given)))
    with pytest.raises(
        BadInput, match=r"released_weights: 'enc.9.mab.fc_q.bias' has no place in a TableModel of 4"
    ):
        released_weights({"enc.9.mab.fc_q.bias": torch.zeros(1)}, 4)


def test_a_row_block_has_as_many_weights_as_published() -> None:
    h = 12
    count = sum(weight.numel() for weight in made(preset="published").blocks[0].parameters())
    assert count == 13 * h**2 + 14 * h


@rows
@presets
@given(order=st.permutations(range(6)))
def test_shuffling_rows_shuffles_predictions(attention: str, preset: str, order: list[int]) -> None:
    model, (values, missing) = made(attention, preset), table(1, 6)
    shuffled = model(values[:, order], missing[:, order])
    for actual, expected in zip(shuffled, model(values, missing), strict=True):
        assert_exact(actual, expected[:, order])


@rows
@pytest.mark.parametrize("garbage", [3.0, float("nan"), float("inf")], ids=str)
def test_what_stands_at_missing_entries_has_no_influence(attention: str, garbage: float) -> None:
    model, (values, missing) = made(attention), table(1, 6)
    spoilt = values.masked_fill(missing.index_select(-1, model.owner), garbage)
    assert all(map(torch.equal, model(spoilt, missing), model(values, missing)))


def test_missing_is_not_zero() -> None:
    model, values = made(), torch.zeros(1, 4, 5, dtype=torch.float64)
    known = torch.zeros(1, 4, 3, dtype=torch.bool)
    assert not torch.allclose(model(values, known)[0], model(values, ~known)[0])


@rows
def test_rows_that_do_not_exist_have_no_influence(attention: str) -> None:
    model, (values, missing), mask = made(attention), table(2, 6), keep([6, 4], 6)
    found = model(values.masked_fill(~mask[..., None], float("nan")), missing, row_mask=mask)
    for part, bare in zip(found, model(values[1:, :4], missing[1:, :4]), strict=True):
        assert_exact(part[1, :4], bare[0])
        assert bool((part[1, 4:] == 0).all())


@rows
def test_rows_beyond_the_context_change_nothing_for_others(attention: str) -> None:
    model, (values, missing) = made(attention), table(1, 9)
    found = model(values, missing, context=6)
    alone = model(values[:, :6], missing[:, :6])
    one = [0, 1, 2, 3, 4, 5, 7]
    single = model(values[:, one], missing[:, one], context=6)
    for whole, front, asked in zip(found, alone, single, strict=True):
        assert_exact(whole[:, :6], front)
        assert_exact(whole[:, 7:8], asked[:, 6:])
    assert all(map(torch.equal, model(values, missing, context=9), model(values, missing)))


def test_one_row_beyond_the_context_sees_as_in_the_whole_table() -> None:
    model, (values, missing) = made(depth=2), table(1, 7)
    beyond, whole = model(values, missing, context=6), model(values, missing)
    for asked, plain in zip(beyond, whole, strict=True):
        assert_exact(asked[:, 6:], plain[:, 6:])


@rows
def test_a_mask_and_a_context_together(attention: str) -> None:
    model, (values, missing) = made(attention), table(1, 8)
    mask = torch.tensor([[True, False, True, True, True, False, True, True]])
    found = model(values, missing, row_mask=mask, context=5)
    kept = mask[0].nonzero()[:, 0]
    bare = model(values[:, kept], missing[:, kept], context=4)
    for part, plain in zip(found, bare, strict=True):
        assert_exact(part[:, kept], plain)


@rows
def test_parts_of_rows_give_what_all_at_once_gives(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (values, missing) = made(attention), table(2, 7)
    wanted = model(values, missing, context=5)
    monkeypatch.setattr(module, "PART", 3)
    with torch.no_grad():
        found = model(values, missing, context=5)
    for part, whole in zip(found, wanted, strict=True):
        assert_exact(part, whole)


def test_columns_may_come_one_by_one() -> None:
    model, (values, missing) = made(), table(1, 4)
    assert all(map(torch.equal, model(values.split(WIDTHS, dim=-1), missing), model(values, missing)))


def test_the_kind_of_columns_is_told_only_where_kinds_meet() -> None:
    assert made().kind is not None
    alike = TableModel([2, 3], categorical=[True, True], width=4, depth=2, heads=2)
    assert alike.kind is None
    assert alike(torch.zeros(1, 2, 5), torch.zeros(1, 2, 2, dtype=torch.bool))[1].shape == (1, 2, 3)


@rows
def test_gradients_reach_every_weight(attention: str) -> None:
    model, (values, missing) = made(attention), table(2, 5)
    sum(part.square().sum() for part in model(values, missing)).backward()
    unused = ("root",) if attention == "primal" else ()
    for name, weight in model.named_parameters():
        if name.endswith(unused or "nothing") or (attention == "self" and ".query." in name + "."):
            continue
        if attention == "self" and any(
            part in name for part in ("attention.query", "attention.key", "norm.norm")
        ):
            continue
        assert weight.grad is not None, name
        assert bool(weight.grad.isfinite().all()), name


def test_dropout_is_for_training_only() -> None:
    with seeded(0):
        model = TableModel(WIDTHS, categorical=KINDS, width=4, depth=2, heads=2, dropout=0.5).double()
        given = table(1, 6)
        assert not torch.equal(model(*given)[0], model(*given)[0])
    model.eval()
    assert torch.equal(model(*given)[0], model(*given)[0])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_answers_alike(copied: object) -> None:
    model, given = made("inducing"), table(1, 5)
    assert all(map(torch.equal, copied(model)(*given), model(*given)))


@pytest.mark.gpu
@rows
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-3)], ids=str)
def test_the_device_changes_nothing(attention: str, dtype: torch.dtype, bound: float) -> None:
    model, (values, missing), mask = made(attention), table(2, 9), keep([9, 7], 9)
    wanted = model(values, missing, row_mask=mask, context=6)
    given = values.to("cuda", dtype), missing.cuda()
    found = model.to("cuda", dtype)(*given, row_mask=mask.cuda(), context=6)
    for there, here in zip(found, wanted, strict=True):
        assert_exact(there.cpu().double(), here, bound=bound)


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(BadInput, match="TableModel: 2 widths and 1 kinds of columns"):
        TableModel([1, 1], categorical=[False])
    with pytest.raises(BadInput, match="TableModel: 0 widths and 0 kinds"):
        TableModel([], categorical=[])
    with pytest.raises(BadInput, match="TableModel: depth is 3, expected an even number"):
        TableModel([1], categorical=[False], depth=3)
    with pytest.raises(BadInput, match="TableModel: depth is 1, expected a whole number of at least 2"):
        TableModel([1], categorical=[False], depth=1)
    with pytest.raises(BadInput, match="TableModel: widths is 0"):
        TableModel([0], categorical=[False])
    with pytest.raises(UnknownName, match="TableModel: unknown preset 'publishd', did you mean 'published'"):
        TableModel([1], categorical=[False], preset="publishd")
    with pytest.raises(UnknownName, match="DatapointAttention: unknown attention 'linear'"):
        TableModel([1], categorical=[False], attention="linear")
    model, (values, missing) = made(), table(1, 4)
    with pytest.raises(
        BadInput, match=r"TableModel: `values` \(1, 4, 4\) and `missing` \(1, 4, 3\), expected"
    ):
        model(values[..., 1:], missing)
    with pytest.raises(ShapeError, match="TableModel: axis `r` is 4 in `values` but 3 in `missing`"):
        model(values, missing[:, 1:])
    with pytest.raises(BadInput, match=r"TableModel: `missing` is torch\.float64, expected torch\.bool"):
        model(values, missing.double())
    with pytest.raises(ShapeError, match=r"TableModel: `row_mask` has shape \(1, 3\)"):
        model(values, missing, row_mask=keep([2], 3))
    with pytest.raises(BadInput, match="TableModel: context is 5, expected from 1 to the 4 rows"):
        model(values, missing, context=5)
