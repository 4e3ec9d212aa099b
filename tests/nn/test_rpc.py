"""RPCAttention and SymmetricAttention: their answer, their laws, decoding, their pattern, their words."""

from dataclasses import asdict

import pytest
import torch
from torch import Tensor

from kernelhead.errors import BadInput, UnknownName
from kernelhead.nn import (
    RPCAttention,
    SoftmaxAttention,
    SymmetricAttention,
    merge_heads,
    record,
    split_heads,
)
from kernelhead.ops import Pursuit, softmax_attention
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.oracles import rpc as oracles
from tests.tolerance import assert_exact

FORMS: dict[str, dict[str, object]] = {
    "published": {"strength": 0.5},
    "corrected": {"preset": "corrected"},
    "asymmetric": {"preset": "corrected", "symmetric": False},
    "causal": {"preset": "corrected", "causal": True},
    "causal, published": {"strength": 0.5, "causal": True},
    "causal, asymmetric": {"strength": 0.5, "causal": True, "symmetric": False},
    "leaking": {"strength": 0.5, "causal": True, "scope": "sequence"},
    "switched": {"sign": "journal", "threshold": "over_mu", "mu_width": "head", "strength": 0.3},
}
forms = pytest.mark.parametrize("form", FORMS)
decoded = pytest.mark.parametrize("form", ["causal", "causal, published", "causal, asymmetric"])
MASK = keep([7, 4], 7)


def layer(form: str = "published", **options: object) -> RPCAttention:
    with seeded(0):
        made = RPCAttention(12, heads=3, **{"iterations": 3, **FORMS[form], **options})  # type: ignore[arg-type]
    # Keys of PyTorch's first weights are so small that hardly one is ever clipped.
    torch.nn.init.normal_(made.key.weight, generator=torch.Generator().manual_seed(1))
    return made.double()


def sides(made: RPCAttention | SymmetricAttention, x: Tensor) -> dict[str, Tensor]:
    names = [name for name in ("query", "key", "value") if getattr(made, name, None) is not None]
    return {name: split_heads(getattr(made, name)(x), 3) for name in names}


@forms
@pytest.mark.parametrize("mask", [None, MASK], ids=["plain", "masked"])
def test_output_is_that_of_the_listing(form: str, mask: Tensor | None) -> None:
    made, x = layer(form), points(2, 7, 12)
    low = oracles.rpc_attention(**sides(made, x), **asdict(made.pursuit), mask=mask, causal=made.causal)
    expected = made.out(merge_heads(low))
    assert_exact(made(x, mask=mask), expected if mask is None else expected * mask.unsqueeze(-1))


@forms
def test_gradients_are_those_of_the_listing(form: str) -> None:
    made, x = layer(form), points(2, 7, 12).requires_grad_()
    low = oracles.unrolled(**sides(made, x), **asdict(made.pursuit), causal=made.causal)
    wanted = [x, *made.parameters()]
    outputs = made(x), made.out(merge_heads(low))
    for one, other in zip(*(torch.autograd.grad(y.square().sum(), wanted) for y in outputs), strict=True):
        assert_exact(one, other)


def test_presets() -> None:
    assert layer("published", strength=None).pursuit == Pursuit.published(3, 4.0)
    assert layer("corrected").pursuit == Pursuit.corrected(3, 0.75)
    assert RPCAttention(12, heads=3).pursuit == Pursuit.published()
    assert layer("causal").pursuit.scope == "prefix"
    assert layer("leaking").pursuit.scope == "sequence"
    assert layer("switched").pursuit == Pursuit(3, 0.3, "journal", "over_mu", "head")
    assert "sign='journal'" in repr(layer("switched"))


def test_a_fused_projection_is_key_then_value() -> None:
    made, x = layer(), points(2, 7, 12)
    fused = torch.nn.Linear(12, 24).double()
    with torch.no_grad():
        for part, projection in zip(range(2), (made.key, made.value), strict=True):
            projection.weight.copy_(fused.weight[12 * part : 12 * (part + 1)])
            projection.bias.copy_(fused.bias[12 * part : 12 * (part + 1)])
    key, value = fused(x).reshape(2, 7, 2, 3, 4).permute(2, 0, 3, 1, 4)
    low = oracles.rpc_attention(key, value, **asdict(made.pursuit))
    assert_exact(made(x), made.out(merge_heads(low)))


@forms
@pytest.mark.parametrize("mask", [None, MASK], ids=["plain", "masked"])
def test_the_pattern_is_what_was_applied_last(form: str, mask: Tensor | None) -> None:
    made, x = layer(form), points(2, 7, 12)
    with record(made, patterns=True) as tape:
        output = made(x, mask=mask)
    call = tape.last("")
    assert call.moments is None
    assert call.pattern is not None
    applied = made.out(merge_heads(call.pattern.apply(sides(made, x)["value"])))
    assert_exact(applied if mask is None else applied * mask.unsqueeze(-1), output)
    real = torch.ones(2, 7) if mask is None else mask
    assert_exact(call.pattern.marginals()[0], real[:, None].expand(2, 3, 7).double())
    if made.causal:
        assert (call.pattern.matrix().triu(1) == 0).all()


@decoded
@pytest.mark.parametrize("cuts", [[0] * 7, [3, 0, 2, 1], [7]], ids=str)
@pytest.mark.parametrize("mask", [None, MASK, MASK.flip(-1)], ids=["plain", "masked", "masked in front"])
def test_decoding_equals_the_parallel_form(form: str, cuts: list[int], mask: Tensor | None) -> None:
    made, x = layer(form), points(2, 7, 12)
    state, outputs, at = made.start(2), [], 0
    for cut in cuts:
        # Nothing stands for one point without an axis of points.
        here = slice(at, at + cut) if cut else at
        one, state = made.step(x[:, here], state, mask=None if mask is None else mask[:, here])
        outputs.append(one if cut else one[:, None])
        at += max(cut, 1)
    assert_exact(torch.cat(outputs, dim=1), made(x, mask=mask))
    assert state.seen.tolist() == ([7, 7] if mask is None else [7, 4])


def test_nan_in_the_padding_of_a_step_stays_there() -> None:
    made, mask = layer("causal"), torch.tensor([True, False])
    x = points(2, 12).where(mask[:, None], torch.nan)
    output, state = made.step(x, made.start(2), mask=mask)
    assert output.isfinite().all()
    assert (output[1] == 0).all()
    assert made.step(points(2, 12), state)[0].isfinite().all()


@decoded
def test_the_last_point_moves_no_bit_before_it(form: str) -> None:
    made, x = layer(form), points(2, 7, 12)
    before = made(x)
    x[:, -1] = 9.0
    assert torch.equal(made(x)[:, :-1], before[:, :-1])
    assert not torch.allclose(layer("leaking")(x)[:, :-1], layer("leaking")(points(2, 7, 12))[:, :-1])


@forms
def test_a_trace_is_of_the_layers_own_keys(form: str) -> None:
    made, x = layer(form), points(2, 7, 12)
    trace = made.trace(x, mask=MASK)
    assert trace.nonzero.shape == (3, 2, 3)
    assert trace.nonzero.max() > 0
    with record(made, patterns=True) as tape:
        made(x, mask=MASK)
    pattern = tape.last("").pattern
    assert pattern is not None
    diagonal = pattern.matrix().diagonal(dim1=-2, dim2=-1).sum(-1) / MASK.sum(-1)[:, None]
    assert_exact(trace.diagonal[-1], diagonal)
    padded = x.where(MASK[..., None], torch.nan)
    assert torch.equal(made.trace(padded, mask=MASK).size, trace.size)
    assert not trace.size.requires_grad


def test_one_iteration_without_clipping_is_symmetric_attention() -> None:
    pursued, x = layer(iterations=1, strength=1e6), points(2, 7, 12)
    plain = SymmetricAttention(12, heads=3).double()
    plain.load_state_dict(pursued.state_dict())
    assert_exact(pursued(x, mask=MASK), plain(x, mask=MASK))


@pytest.mark.parametrize("causal", [False, True])
def test_symmetric_attention_is_attention_of_keys(causal: bool) -> None:
    with seeded(0):
        made = SymmetricAttention(12, heads=3, causal=causal).double()
    x = points(2, 7, 12)
    with record(made, patterns=True) as tape:
        output = made(x)
    key, value = sides(made, x).values()
    assert_exact(output, made.out(merge_heads(softmax_attention(key, key, value, causal=causal))))
    pattern = tape.last("").pattern
    assert pattern is not None
    assert_exact(made.out(merge_heads(pattern.apply(value))), output)


def test_symmetric_attention_decodes() -> None:
    with seeded(0):
        made = SymmetricAttention(12, heads=3, causal=True).double()
    x, state, outputs = points(2, 7, 12), made.start(2), []
    for point in x.unbind(1):
        output, state = made.step(point, state)
        outputs.append(output)
    assert_exact(torch.stack(outputs, dim=1), made(x))


def test_symmetric_attention_is_softmax_attention_whose_queries_are_its_keys() -> None:
    ours, theirs = (kind(12, heads=3, causal=True) for kind in (SymmetricAttention, SoftmaxAttention))
    held = ours.state_dict()
    theirs.load_state_dict({**held, "query.weight": held["key.weight"], "query.bias": held["key.bias"]})
    x, mask = points(2, 7, 12, dtype=torch.float32), keep([7, 4], 7)
    with record(ours, patterns=True) as tape, record(theirs, patterns=True) as other:
        assert torch.equal(ours(x, mask=mask), theirs(x, mask=mask))
    assert torch.equal(tape.last("").pattern.matrix(), other.last("").pattern.matrix())
    states = ours.start(2), theirs.start(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for point in x.unbind(1):
            (one, first), (two, second) = ours.step(point, states[0]), theirs.step(point, states[1])
            states = first, second
            assert torch.equal(one, two)
    assert (states[0].key.shape, states[0].key.dtype) == ((2, 3, 7, 4), torch.bfloat16)


@pytest.mark.parametrize("made", [layer(dropout=0.5), SymmetricAttention(12, heads=3, dropout=0.5).double()])
def test_dropout_acts_in_training_only(made: RPCAttention | SymmetricAttention) -> None:
    x = points(2, 7, 12)
    with seeded(0):
        first, second = made.train()(x), made(x)
    assert not torch.equal(first, second)
    made.eval()
    assert torch.equal(made(x), made(x))


def test_names_of_the_state() -> None:
    def names(*parts: str) -> set[str]:
        return {f"{part}.{kind}" for part in parts for kind in ("weight", "bias")}

    assert set(layer().state_dict()) == names("key", "value", "out")
    assert set(layer("asymmetric").state_dict()) == names("query", "key", "value", "out")
    assert set(SymmetricAttention(12, heads=3).state_dict()) == names("key", "value", "out")


def test_words() -> None:
    with pytest.raises(BadInput, match=r"RPCAttention: width 12 does not split into 5 heads"):
        RPCAttention(12, heads=5)
    with pytest.raises(UnknownName, match=r"unknown preset 'publised', did you mean 'published'"):
        RPCAttention(12, heads=3, preset="publised")
    with pytest.raises(UnknownName, match=r"Pursuit: unknown threshold 'over'"):
        RPCAttention(12, heads=3, threshold="over")
    with pytest.raises(BadInput, match=r"Pursuit: iterations is 0, expected a whole number of at least 1"):
        RPCAttention(12, heads=3, iterations=0)
    with pytest.raises(BadInput, match=r"RPCAttention: dropout is 1.0, expected a number in \[0, 1\)"):
        RPCAttention(12, heads=3, dropout=1.0)
    with pytest.raises(BadInput, match=r'RPCAttention: the scope "prefix" needs causal=True'):
        RPCAttention(12, heads=3, scope="prefix")
    with pytest.raises(BadInput, match=r"RPCAttention: takes no `context`, for it compares .* \(2, 5, 12\)"):
        layer()(points(2, 7, 12), context=points(2, 5, 12))
    with pytest.raises(BadInput, match=r"trace: `x` has shape \(2, 7, 5\), expected \(b, n, 12\)"):
        layer().trace(points(2, 7, 5))


def test_words_of_decoding() -> None:
    made = layer("causal")
    with pytest.raises(BadInput, match=r"RPCAttention: start and step need causal=True"):
        layer().start(2)
    with pytest.raises(BadInput, match=r"RPCAttention: start and step need causal=True"):
        layer().step(points(2, 12), made.start(2))
    with pytest.raises(BadInput, match=r'rpc_start: the scope is "sequence", expected "prefix"'):
        layer("leaking").start(2)
    with pytest.raises(BadInput, match=r"step: `x` has shape \(3, 12\), expected \(2, 12\) or \(2, n, 12\)"):
        made.step(points(3, 12), made.start(2))
    with pytest.raises(BadInput, match=r"step: `x` has shape \(12,\), expected \(2, 12\) or \(2, n, 12\)"):
        made.step(points(12), made.start(2))


def test_words_of_symmetric_attention() -> None:
    made = SymmetricAttention(12, heads=3, causal=True).double()
    with pytest.raises(BadInput, match=r"SymmetricAttention: width 12 does not split into 5 heads"):
        SymmetricAttention(12, heads=5)
    with pytest.raises(BadInput, match=r"SymmetricAttention: dropout is -1.0, expected a number in \[0, 1\)"):
        SymmetricAttention(12, heads=3, dropout=-1.0)
    with pytest.raises(BadInput, match=r"SymmetricAttention: takes no `context`, for its keys attend to"):
        made(points(2, 7, 12), context=points(2, 5, 12))
    with pytest.raises(BadInput, match=r"SymmetricAttention: start and step need causal=True"):
        SymmetricAttention(12, heads=3).start(2)
    with pytest.raises(BadInput, match=r"step: `x` has shape \(3, 12\), expected \(2, 12\)"):
        made.step(points(3, 12), made.start(2))
