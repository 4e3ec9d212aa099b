"""Cores: their answers, what all of them promise, steps with a cache, their words."""

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.nn import PrimalAttention, ksvd_penalty, record
from kernelhead.nn.cores import CORES, AbstractCore, PrimalCore, RPCCore, core_of
from kernelhead.nn.hosts import Sides
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.oracles import rivals
from tests.oracles.cores import primal_core
from tests.oracles.primal import second_moments
from tests.oracles.rpc import rpc_attention
from tests.tolerance import assert_exact

H, D = 2, 4
MEMBERS: dict[str, dict[str, Any]] = {
    "softmax": {"name": "softmax"},
    "primal_join": {"name": "primal", "rank": 3, "landmarks": 5},
    "primal_alone": {"name": "primal", "rank": 3, "mix": "join"},
    "primal_pattern": {"name": "primal", "rank": 3},
    "primal_random": {"name": "primal", "rank": 3, "feature_map": "exponential"},
    "rpc": {"name": "rpc", "iterations": 3, "strength": 0.5},
    "rpc_corrected": {"name": "rpc", "preset": "corrected"},
    "linear": {"name": "linear"},
    "performer": {"name": "performer", "features": 12},
    "nystrom": {"name": "nystrom", "landmarks": 3},
}
PRIMAL = [name for name in MEMBERS if name.startswith("primal")]
SELF = [name for name in MEMBERS if name.startswith(("primal", "rpc", "nystrom"))]
CAUSAL = [name for name in MEMBERS if name != "nystrom"]
CACHED = [name for name in CAUSAL if name != "primal_alone"]
FORMS = [(name, causal) for name in MEMBERS for causal in (False, True) if not causal or name in CAUSAL]
members = pytest.mark.parametrize("member", MEMBERS)
forms = pytest.mark.parametrize(("member", "causal"), FORMS)
causality = pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])


def made(member: str, *, seed: int = 0) -> AbstractCore:
    """A core in float64, the same weights for a seed."""
    with seeded(seed):
        return core_of(heads=H, head=D, **MEMBERS[member]).double()


def sides(n: int = 7, m: int | None = None, *, b: int = 2) -> list[Tensor]:
    """Query, key and value."""
    m = n if m is None else m
    return [points(b, H, size, D, seed=seed) for seed, size in enumerate((n, m, m))]


def expected(member: str, core: AbstractCore, *given: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """The oracle's answer, for as many queries as keys."""
    if isinstance(core, PrimalCore):
        kind = {"landmarks": core.landmarks, "mix": core.mix}
        return primal_core(*given, core.state_dict(), **kind, mask=mask, causal=causal)[0]
    if isinstance(core, RPCCore):
        found = {name: getattr(core.pursuit, name) for name in ("sign", "threshold", "width", "guard")}
        found |= {"iterations": core.pursuit.iterations, "strength": core.pursuit.strength}
        scope = "prefix" if causal else "sequence"
        return rpc_attention(*given[1:], **found, scope=scope, mask=mask, causal=causal)
    if member == "performer":
        return rivals.performer_attention(*given, core.frequencies, mask=mask, causal=causal)
    return getattr(rivals, f"{member}_attention")(*given, mask=mask, causal=causal)


@pytest.mark.parametrize(
    ("member", "causal"), [form for form in FORMS if form[0] not in ("nystrom", "primal_random")]
)
@pytest.mark.parametrize("n", [1, 3, 7], ids="n{}".format)
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_the_answer_is_the_definition(member: str, causal: bool, n: int, masked: bool) -> None:
    core, given, mask = made(member), sides(n), keep([n, max(1, n - 2)], n) if masked else None
    found = core(*given, mask=mask, causal=causal)
    assert_exact(found, expected(member, core, *given, mask=mask, causal=causal))


@pytest.mark.parametrize("form", ["primal_join", "primal_alone"])
@causality
def test_a_join_is_that_of_the_layer_with_values_for_its_input(form: str, causal: bool) -> None:
    core, given = made(form), sides(6)
    kind = {"landmarks": core.landmarks, "causal": causal, "join": "per_head"}
    layer = PrimalAttention(H * D, heads=H, rank=3, **kind).double()
    layer.load_state_dict({**layer.state_dict(), **core.state_dict()})
    with torch.no_grad():
        for side in (layer.query, layer.key, layer.out):
            side.weight.copy_(torch.eye(H * D)), side.bias.zero_()
    x = given[2].transpose(1, 2).flatten(2)
    same = given[2], given[2], given[2]
    assert_exact(core(*same, causal=causal).transpose(1, 2).flatten(2), layer(x))


@pytest.mark.parametrize("member", PRIMAL[:3])
@causality
def test_scores_moments_and_pattern_are_the_definition(member: str, causal: bool) -> None:
    core, given, mask = made(member), sides(6), keep([6, 4], 6)
    with record(core, patterns=True) as tape:
        core(*given, mask=mask, causal=causal)
    call, kind = tape.last(""), {"landmarks": core.landmarks, "mix": core.mix}
    _, left, right = primal_core(*given, core.state_dict(), **kind, mask=mask, causal=causal)
    assert_exact(call.moments.left, second_moments(left, mask))
    assert_exact(call.moments.right, second_moments(right, mask))
    assert_exact(call.moments.values, core.root.square())
    if core.mix == "join":
        assert_exact(call.pattern.left, left)
        assert_exact(call.pattern.right, right)
        assert call.kernel.shape == (2, H, 6, 6)
    else:
        assert_exact(call.pattern.apply(given[2]), core(*given, mask=mask, causal=causal))
    assert bool(ksvd_penalty(tape) >= 0)
    assert bool(ksvd_penalty(tape, trace="W_X", reduction="batch") >= 0)


@pytest.mark.parametrize("member", ["softmax", "rpc", "rpc_corrected", "linear", "performer", "nystrom"])
def test_the_pattern_applied_to_values_is_the_output(member: str) -> None:
    core, given, mask = made(member), sides(6), keep([6, 4], 6)
    with record(core, patterns=True) as tape:
        output = core(*given, mask=mask)
    assert_exact(tape.last("").pattern.apply(given[2]), output)


@pytest.mark.parametrize("member", CACHED)
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_steps_with_growing_keys_and_values_equal_the_parallel_form(
    member: str, size: int, masked: bool
) -> None:
    core, (query, key, value) = made(member), sides(9)
    # Padding on the left, as in batches of prompts, and a hole.
    mask = torch.ones(2, 9, dtype=torch.bool)
    if masked:
        mask[1, :2] = mask[0, 4] = False
    whole = core(query, key, value, mask=mask, causal=True)
    for start in range(0, 9, size):
        seen = min(start + size, 9)
        step = core(
            query[:, :, start:seen],
            key[:, :, :seen],
            value[:, :, :seen],
            mask=mask[:, :seen],
            causal=True,
        )
        assert_exact(step, whole[:, :, start:seen])


@pytest.mark.parametrize("member", CACHED)
def test_a_step_records_what_it_did(member: str) -> None:
    core, (query, key, value) = made(member), sides(3, 8)
    mask = keep([8, 8], 8)
    mask[1, :3] = False
    with record(core, patterns=True) as tape:
        output = core(query, key, value, mask=mask, causal=True)
    call = tape.last("")
    assert call.pattern.shape == (2, H, 3, 8)
    entries = call.pattern.matrix()
    assert bool((entries[1, ..., :3] == 0).all())
    if not member.startswith("primal") or core.mix == "pattern":
        assert bool((entries.triu(6) == 0).all())
        assert_exact(call.pattern.apply(value), output)
    if call.kernel is not None:
        assert call.kernel.shape == (2, H, 3, 8)
        assert bool((call.kernel.matrix().triu(6) == 0).all())


@pytest.mark.parametrize("member", CAUSAL)
def test_a_causal_core_does_not_look_ahead(member: str) -> None:
    core, given = made(member), sides(7)
    before = core(*given, causal=True)
    for side in given:
        side[:, :, 4:] = points(2, H, 3, D, seed=9)
    after = core(*given, causal=True)
    assert_exact(after[:, :, :4], before[:, :, :4])
    assert not torch.equal(after, before)


@forms
@pytest.mark.parametrize("garbage", [1e30, float("nan"), float("inf")], ids=str)
def test_padding_has_no_influence(member: str, causal: bool, garbage: float) -> None:
    core, mask, found = made(member), keep([7, 4, 0], 7), []
    mask[0, 2] = False
    for filling in (0.0, garbage):
        given = [side.masked_fill(~mask[:, None, :, None], filling) for side in sides(b=3)]
        if (
            member not in SELF
        ):  # queries of such cores may be of another sequence, which the mask does not know
            given[0] = sides(b=3)[0]
        given = [side.requires_grad_() for side in given]
        output = core(*given, mask=mask, causal=causal)
        weights = [weight for weight in core.parameters() if weight.requires_grad]
        loss = output.masked_fill(~mask[:, None, :, None], 0).square().sum()
        gradients = torch.autograd.grad(loss, [*given, *weights], allow_unused=True)
        found.append([output, *(gradient for gradient in gradients if gradient is not None)])
    for clean, dirty in zip(*found, strict=True):
        assert torch.equal(clean, dirty)
        assert bool(clean.isfinite().all())


@forms
@pytest.mark.parametrize("length", [1, 2, 4, 6])
def test_padding_equals_the_bare_sequence(member: str, causal: bool, length: int) -> None:
    core, given = made(member), sides()
    padded = core(*given, mask=keep([7, length], 7), causal=causal)
    bare = core(*(side[1:, :, :length] for side in given), causal=causal)
    assert_exact(padded[1:, :, :length], bare)
    assert_exact(padded[:1], core(*(side[:1] for side in given), causal=causal))


@pytest.mark.parametrize("member", SELF)
def test_padded_points_come_out_as_zeros(member: str) -> None:
    output = made(member)(*sides(), mask=keep([7, 4], 7))
    assert bool((output[1, :, 4:] == 0).all())
    assert bool((output[1, :, :4] != 0).any())


@pytest.mark.parametrize("member", [name for name in MEMBERS if name not in SELF])
def test_queries_of_another_sequence_are_not_masked(member: str) -> None:
    core, given = made(member), sides(5, 3)
    mask = keep([3, 1], 3)
    assert core.crosses
    assert_exact(core(*given, mask=mask), expected(member, core, *given, mask=mask, causal=False))


@forms
def test_gradients_flow_to_all_that_is_used(member: str, causal: bool) -> None:
    core, given = made(member), [side.requires_grad_() for side in sides()]
    core(*given, mask=keep([7, 4], 7), causal=causal).square().sum().backward()
    for name, side in zip(("query", "key", "value"), given, strict=True):
        used = side.grad is not None and bool((side.grad != 0).any())
        assert used == (name not in core.unused)
    for name, weight in core.named_parameters():
        assert (weight.grad is None) == (name == "root" and core.mix == "join"), name


@forms
def test_gradcheck(member: str, causal: bool) -> None:
    core, mask = made(member), keep([4, 3], 4)
    given = [side.requires_grad_() for side in sides(4)]
    assert torch.autograd.gradcheck(lambda *s: core(*s, mask=mask, causal=causal), given)


@pytest.mark.parametrize("member", PRIMAL)
@causality
def test_gradcheck_of_weights(member: str, causal: bool) -> None:
    core, given = made(member), sides(4)
    names, weights = zip(*core.named_parameters(), strict=True)

    def output(*weights: Tensor) -> Tensor:
        return torch.func.functional_call(
            core, dict(zip(names, weights, strict=True)), tuple(given), {"causal": causal}
        )

    assert torch.autograd.gradcheck(output, weights)


@forms
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_shape_and_precision_are_those_of_the_values(member: str, causal: bool, dtype: torch.dtype) -> None:
    given = [side.to(dtype) for side in sides()]
    output = made(member).to(dtype)(*given, mask=keep([7, 4], 7), causal=causal)
    assert (output.shape, output.dtype) == (given[2].shape, dtype)
    assert bool(output.isfinite().all())


@forms
def test_half_precision_of_a_host_under_autocast(member: str, causal: bool) -> None:
    given = [side.to(torch.bfloat16) for side in sides()]
    core = made(member).float()
    with torch.autocast("cpu", torch.bfloat16), record(core, patterns=True):
        output = core(*given, causal=causal)
    assert output.dtype == torch.bfloat16
    assert bool(output.isfinite().all())


@members
def test_state_dict_round_trip(member: str) -> None:
    core, other = made(member), made(member, seed=1)
    other.load_state_dict(core.state_dict())
    assert torch.equal(core(*sides()), other(*sides()))


@members
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda core: pickle.loads(pickle.dumps(core))], ids=["deepcopy", "pickle"]
)
def test_a_copy_answers_alike_and_stands_alone(
    member: str, copied: Callable[[AbstractCore], AbstractCore]
) -> None:
    core, given = made(member), sides()
    with record(core, patterns=True):
        before, twin = core(*given), copied(core)
    assert torch.equal(twin(*given), before)
    assert (twin.recording, twin.recorded) == ("off", None)
    with torch.no_grad():
        for weight in twin.parameters():
            weight.add_(1)
    assert torch.equal(core(*given), before)


@members
def test_options_build_the_same_core_again(member: str) -> None:
    core = made(member)
    options = json.loads(json.dumps(core.options()))
    other = core_of(core.name, heads=core.heads, head=core.head, **options).double()
    other.load_state_dict(core.state_dict())
    assert torch.equal(core(*sides()), other(*sides()))
    assert other.options() == core.options()
    assert repr(other) == repr(core)


@members
def test_recording_changes_no_output_and_leaves_nothing(member: str) -> None:
    core, given = made(member), sides()
    plain = core(*given)
    for patterns in (False, True):
        with record(core, patterns=patterns) as tape:
            output = core(*given)
        assert_exact(output, plain)
        call = tape.last("")
        assert torch.equal(call.output, output)
        assert (call.pattern is not None) == patterns
        assert (call.moments is not None) == member.startswith("primal")
    assert (core.recording, core.recorded) == ("off", None)


@members
def test_the_global_generator_stays_where_it_is(member: str) -> None:
    core, before = made(member), torch.get_rng_state()
    core(*sides())
    assert torch.equal(torch.get_rng_state(), before)


@members
def test_a_batch_of_one_is_a_slice_of_a_batch(member: str) -> None:
    core, given = made(member), sides(b=3)
    assert_exact(core(*(side[1:2] for side in given)), core(*given)[1:2])


@pytest.mark.parametrize("scale", [None, 0.2, 1.0])
def test_scale_is_that_of_the_logits(scale: float | None) -> None:
    given, mask = sides(), keep([7, 4], 7)
    whole = Sides(*given, mask, True, D**-0.5 if scale is None else scale)
    assert_exact(made("softmax")(*given, mask=mask, causal=True, scale=scale), whole.output())
    larger = [given[0] * (1 if scale is None else scale * D**0.5), *given[1:]]
    for member in ("performer", "nystrom"):
        core = made(member)
        assert_exact(core(*given, mask=mask, scale=scale), core(*larger, mask=mask))


def test_a_core_with_offsets_alone_takes_means_of_values() -> None:
    core, given, mask = made("primal_pattern"), sides(), keep([7, 4], 7)
    with torch.no_grad():
        core.left.zero_(), core.right.zero_()
    mean = given[2][1, :, :4].mean(-2, keepdim=True).expand(-1, 4, -1)
    # The offsets were made in float32.
    assert_exact(core(*given, mask=mask)[1, :, :4], mean, bound=1e-6)


@pytest.mark.plain
@pytest.mark.slow
def test_compiled_in_one_graph(compiler: None) -> None:
    for member in PRIMAL[:3]:
        core, mask = made(member), keep([7, 4], 7)
        for causal in (False, True):
            given = [side.requires_grad_() for side in sides()]
            expected = core(*given, mask=mask, causal=causal)
            compiled = torch.compile(core, fullgraph=True, backend="aot_eager")
            found = compiled(*given, mask=mask, causal=causal)
            assert_exact(found, expected)
            wanted = torch.autograd.grad(expected.square().sum(), given[0])[0]
            assert_exact(torch.autograd.grad(found.square().sum(), given[0])[0], wanted)


@pytest.fixture
def compiler() -> Iterator[None]:
    """A compiler that forgets what it compiled."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_sides_that_do_not_fit() -> None:
    core, (query, key, value) = made("softmax"), sides()
    with pytest.raises(ShapeError, match="SoftmaxCore: axis `m` is 7 in `key` but 6 in `value`"):
        core(query, key, value[:, :, 1:])
    with pytest.raises(BadInput, match=r"`query` has shape \(2, 2, 7, 3\), expected \(b, 2, n, 4\)"):
        core(query[..., 1:], key[..., 1:], value[..., 1:])
    with pytest.raises(BadInput, match="there are 7 queries and 0 keys, expected one or more of each"):
        core(query, key[:, :, :0], value[:, :, :0])
    with pytest.raises(BadInput, match="causal needs a key for each query, but there are 7 queries and 3"):
        core(query, key[:, :, :3], value[:, :, :3], causal=True)
    with pytest.raises(BadInput, match=r"`mask` is torch.int64, expected torch.bool"):
        core(query, key, value, mask=torch.ones(2, 7, dtype=torch.int64))
    with pytest.raises(ShapeError, match=r"`mask` has shape \(2, 5\), expected \(2, 7\)"):
        core(query, key, value, mask=keep([5, 5], 5))


@pytest.mark.parametrize("member", SELF)
def test_two_sequences_are_refused_where_points_attend_to_themselves(member: str) -> None:
    with pytest.raises(BadInput, match="attends from points to themselves, but there are 3 queries and 7"):
        made(member)(*sides(3, 7))


def test_forms_that_a_core_does_not_have() -> None:
    given = sides()
    with pytest.raises(BadInput, match="NystromCore: landmarks are means over the whole sequence"):
        made("nystrom")(*given, causal=True)
    with pytest.raises(BadInput, match=r"RPCCore: scales .* 1 / sqrt\(d\), 0.5, but `scale` is 1"):
        made("rpc")(*given, scale=1.0)
    assert torch.equal(made("rpc")(*given, scale=0.5), made("rpc")(*given))
    with pytest.raises(BadInput, match="takes running means of all queries, but there are 2 queries and 7"):
        made("primal_alone")(*sides(2, 7), causal=True)
    with pytest.raises(BadInput, match='the mix "pattern" takes no landmarks, got 4'):
        PrimalCore(2, 4, rank=2, landmarks=4, mix="pattern")


def test_names_and_options_that_are_not_there() -> None:
    with pytest.raises(UnknownName, match="core_of: unknown core 'primall', did you mean 'primal'"):
        core_of("primall", heads=2, head=4)
    with pytest.raises(UnknownName, match="PrimalCore: unknown mix 'joined', did you mean 'join'"):
        core_of("primal", heads=2, head=4, rank=2, mix="joined")
    with pytest.raises(UnknownName, match="RPCCore: unknown preset 'publish'"):
        core_of("rpc", heads=2, head=4, preset="publish")
    with pytest.raises(BadInput, match="'softmax' has no option `rank`; it has none"):
        core_of("softmax", heads=2, head=4, rank=3)
    with pytest.raises(
        BadInput, match="'rpc' has no option `landmarks`; it has iterations, strength, preset"
    ):
        core_of("rpc", heads=2, head=4, landmarks=3)
    with pytest.raises(BadInput, match="'primal' needs `rank`"):
        core_of("primal", heads=2, head=4)
    with pytest.raises(BadInput, match="PrimalCore: rank is 0, expected a whole number of at least 1"):
        core_of("primal", heads=2, head=4, rank=0)
    with pytest.raises(BadInput, match=r"NystromCore: landmarks is 1\.5"):
        core_of("nystrom", heads=2, head=4, landmarks=1.5)
    with pytest.raises(BadInput, match="SoftmaxCore: heads is 0"):
        core_of("softmax", heads=0, head=4)
    assert {kind.name for kind, _ in CORES.values()} == {*CORES}
