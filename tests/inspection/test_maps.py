"""attention_maps: block means of what every attention applied, without padding, and their words."""

import pytest
import torch
from torch import nn

from kernelhead.errors import BadInput
from kernelhead.inspection import attention_maps, head_patterns, map_record
from kernelhead.inspection.maps import _means
from kernelhead.models import SequenceClassifier
from kernelhead.nn.base import Attended
from kernelhead.pattern import Dense
from tests.inputs import points
from tests.tolerance import assert_within


def model(attention: str) -> SequenceClassifier:
    return SequenceClassifier(
        2, channels=3, width=8, depth=2, heads=2, rank=2, landmarks=4, attention=attention
    )


@pytest.mark.parametrize("cells", [1, 3, 5, 9], ids="cells{}".format)
@pytest.mark.parametrize("attention", ["softmax", "primal", "rpc_corrected"])
def test_a_map_is_the_mean_of_the_entries_of_its_blocks(attention: str, cells: int) -> None:
    x, net = points(2, 7, 3, dtype=torch.float32), model(attention)
    maps = attention_maps(net, x, case=1, cells=cells)
    for layer, read in enumerate(maps):
        entries = head_patterns(net, x, layer=layer, case=1).entries
        n, m = entries.shape[-2:]
        blocks = [
            [rows.mean((-2, -1)) for rows in band.tensor_split(_edges(m, cells), -1)]
            for band in entries.tensor_split(_edges(n, cells), -2)
        ]
        expected = torch.stack([torch.stack(row, -1) for row in blocks], -2)  # (h, cells, cells)
        assert read.points == (n, m)
        # Four digits are kept.
        torch.testing.assert_close(torch.tensor(read.heads).double(), expected, rtol=1e-3, atol=1e-5)


def _edges(count: int, cells: int) -> list[int]:
    cells = min(count, cells)
    block = [place * cells // count for place in range(count)]
    return [place for place in range(1, count) if block[place] != block[place - 1]]


def test_blocks_cover_all_points_once() -> None:
    for count in (1, 5, 48, 49, 1000):
        means = _means(count, 48)
        assert_within(means.sum(0), eager=means.sum(0), oracle=torch.ones(min(count, 48)).double())
        assert ((means > 0).sum(1) == 1).all()
        sizes = (means > 0).sum(0)
        assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("attention", ["softmax", "primal", "rpc_corrected"])
def test_padded_points_are_left_out(attention: str) -> None:
    x, net = points(1, 7, 3, dtype=torch.float32), model(attention)
    mask = torch.arange(7)[None] < 5
    for padded, alone in zip(attention_maps(net, x, mask), attention_maps(net, x[:, :5]), strict=True):
        assert padded.points == alone.points == (5, 5)
        torch.testing.assert_close(
            torch.tensor(padded.heads), torch.tensor(alone.heads), rtol=1e-3, atol=1e-5
        )


def test_long_inputs_make_no_square() -> None:
    """Of 16,384 points the entries of one head alone would take a gibibyte."""
    net, x = model("primal"), points(1, 2**14, 3, dtype=torch.float32)
    sizes: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            made = func(*args, **(kwargs or {}))
            sizes.extend(each.numel() for each in [made] if isinstance(each, torch.Tensor))
            return made

    with Watch():
        read = attention_maps(net, x)[0]
    assert read.points == (2**14, 2**14)
    assert len(read.heads[0]) == len(read.heads[0][0]) == 48
    assert max(sizes) < 2**14 * 100


def test_a_record_says_what_was_read() -> None:
    record = map_record(
        attention_maps(model("softmax"), points(1, 4, 3, dtype=torch.float32)), data="d", case=0
    )
    assert [*record] == ["layers", "data", "case"]
    assert record["layers"][0]["path"] == "blocks.0.attention"
    assert torch.tensor(record["layers"][0]["heads"]).sum(-1).allclose(torch.ones(2, 4), atol=1e-3)


@pytest.mark.parametrize("attention", ["softmax", "primal"])
def test_a_case_that_is_not_there_is_named(attention: str) -> None:
    with pytest.raises(
        BadInput, match=r"attention_maps: case is 3, expected one of 2 at 'blocks.0.attention'"
    ):
        attention_maps(model(attention), points(2, 4, 3, dtype=torch.float32), case=3)


def test_entries_must_be_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    net = model("primal")
    broken = Dense(torch.full((1, 2, 3, 3), float("nan")))
    _answer(monkeypatch, net, Attended(torch.zeros(1, 3, 8), pattern=broken))
    with pytest.raises(BadInput, match=r"attention_maps: the pattern at 'blocks.0.attention' holds NaN"):
        attention_maps(net, points(1, 3, 3, dtype=torch.float32))


def test_an_attention_without_a_pattern_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    net = model("primal")
    _answer(monkeypatch, net, Attended(torch.zeros(1, 3, 8)))
    with pytest.raises(BadInput, match=r"attention_maps: PrimalAttention at .* recorded no pattern"):
        attention_maps(net, points(1, 3, 3, dtype=torch.float32))


def _answer(monkeypatch: pytest.MonkeyPatch, net: nn.Module, answer: Attended) -> None:
    kind = type(net.get_submodule("blocks.0.attention"))
    monkeypatch.setattr(kind, "attend", lambda self, x, **_: answer)


@pytest.mark.parametrize("attention", ["softmax", "primal"])
def test_cases_keep_their_numbers_where_one_is_hidden(attention: str) -> None:
    net, x = model(attention), points(3, 4, 3, dtype=torch.float32)
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[0] = False
    for case in (1, 2):
        found, alone = attention_maps(net, x, mask, case=case), attention_maps(net, x[case : case + 1])
        assert [each.points for each in found] == [(4, 4)] * 2
        for one, other in zip(found, alone, strict=True):
            torch.testing.assert_close(
                torch.tensor(one.heads), torch.tensor(other.heads), rtol=1e-3, atol=1e-5
            )
        patterns = head_patterns(net, x, mask, layer=0, case=case).entries
        torch.testing.assert_close(patterns, head_patterns(net, x[case : case + 1], layer=0).entries)
    for read in (attention_maps, head_patterns):
        with pytest.raises(
            BadInput, match=rf"{read.__name__}: case 0 at 'blocks.[01].attention' has no real"
        ):
            read(net, x, mask, case=0)
