"""The oracles themselves: against closed forms, matrix algebra and hand-counted numbers."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tests.inputs import keep, points
from tests.oracles import cores, kernels, ksvd, primal, rivals
from tests.oracles.penalty import head_objective, penalty
from tests.tolerance import assert_exact, assert_same_span

HEADS, WIDTH, RANK = 2, 6, 4
HEAD = WIDTH // HEADS
MAPS = {
    "identity": (kernels.identity_kernel, kernels.identity_features),
    "cosine": (kernels.cosine_kernel, kernels.cosine_features),
    "relu": (kernels.relu_kernel, kernels.relu_features),
    "elu": (kernels.elu_kernel, kernels.elu_features),
    "square": tuple(
        partial(f, degree=2, offset=1.0) for f in (kernels.polynomial_kernel, kernels.polynomial_features)
    ),
    "cube": tuple(
        partial(f, degree=3, offset=0.0) for f in (kernels.polynomial_kernel, kernels.polynomial_features)
    ),
}


def layer(rows: int, *, heads_join: bool = False, rank: int = RANK) -> dict[str, Tensor]:
    """Parameters of a layer whose weights have `rows` rows a head."""
    shapes = {
        "query_w": (WIDTH, WIDTH), "query_b": (WIDTH,), "key_w": (WIDTH, WIDTH), "key_b": (WIDTH,),
        "left": (HEADS, rows, rank), "right": (HEADS, rows, rank), "root": (HEADS, rank),
        "join_w": (HEAD, 2 * rank), "join_b": (HEAD,), "out_w": (WIDTH, WIDTH), "out_b": (WIDTH,),
    }  # fmt: skip
    if heads_join:
        shapes |= {"join_w": (HEADS, HEAD, 2 * rank), "join_b": (HEADS, HEAD)}
    return {name: points(*shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items(), start=10)}


def heads_of(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, HEAD)).transpose(1, 2)


def unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=-1)


def project_x(x: Tensor, p: dict[str, Tensor], side: str) -> Tensor:
    return heads_of(x @ p[f"{side}_w"].mT + p[f"{side}_b"])


def out_of(left: Tensor, right: Tensor, p: dict[str, Tensor]) -> Tensor:
    joined = torch.cat([left, right], -1) @ p["join_w"].mT
    joined = joined + (p["join_b"] if p["join_b"].dim() == 1 else p["join_b"].unsqueeze(1))
    return joined.transpose(1, 2).flatten(2) @ p["out_w"].mT + p["out_b"]


def test_landmarks_are_torch_integer_linspace() -> None:
    sizes = [(n, count) for n in range(1, 100) for count in range(1, 100)]
    sizes += [(n, count) for n in (197, 428, 512, 1024, 4096) for count in (1, 2, 3, 50, 200, 300, 960)]
    for n, count in sizes:
        expected = torch.linspace(0, n - 1, count, dtype=torch.int64).tolist()
        assert primal.landmark_index(n, count) == expected, (n, count)


def test_landmarks_are_not_the_floor_everywhere() -> None:
    assert primal.landmark_index(428, 50) != [i * 427 // 49 for i in range(50)]
    assert primal.landmark_index(3, 5) == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("heads_join", [False, True], ids=["one join", "a join a head"])
@pytest.mark.parametrize("landmarks", [1, 3, 5, 9], ids="l{}".format)
def test_data_dependent_layer_is_its_matrix_form(landmarks: int, heads_join: bool) -> None:
    x, p = points(2, 5, WIDTH), layer(landmarks, heads_join=heads_join)
    chosen = heads_of(x[:, torch.linspace(0, 4, landmarks, dtype=torch.int64)])
    left_weights, right_weights = chosen.mT @ p["left"], chosen.mT @ p["right"]
    left = unit(project_x(x, p, "query")) @ left_weights
    right = unit(project_x(x, p, "key")) @ right_weights
    result = primal.primal_layer(x, p, heads=HEADS, landmarks=landmarks)
    assert_exact(result.left_scores, left)
    assert_exact(result.right_scores, right)
    assert_exact(result.output, out_of(left, right, p))
    assert_exact(result.left_moments, left.square().mean(2))
    assert_exact(result.right_moments, right.square().mean(2))
    assert_exact(result.trace, (p["left"] * p["right"]).sum((1, 2)))
    assert_exact(result.projected_trace, (left_weights * right_weights).sum((2, 3)))


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_data_independent_layer_is_its_matrix_form(causal: bool) -> None:
    x, p = points(2, 5, WIDTH), layer(HEAD)
    query, key = project_x(x, p, "query"), project_x(x, p, "key")
    if causal:  # the unit row forgets whether it was a sum or a mean
        query, key = query.cumsum(2), key.cumsum(2)
    left, right = unit(query) @ p["left"], unit(key) @ p["right"]
    result = primal.primal_layer(x, p, heads=HEADS, causal=causal)
    assert_exact(result.output, out_of(left, right, p))
    assert_exact(result.left_moments, left.square().mean(2))
    assert_exact(result.projected_trace, result.trace.expand(2, HEADS))


def test_running_mean_is_cumsum_over_count() -> None:
    x = points(2, HEADS, 5, HEAD)
    expected = x.cumsum(2) / torch.arange(1, 6)[:, None]
    assert_exact(primal.running_mean(x, None), expected)
    mask = torch.tensor([[True, False, True, True, False], [False, True, True, False, True]])
    shut = primal.running_mean(x, mask)
    assert_exact(shut[0][:, mask[0]], primal.running_mean(x[:1, :, mask[0]], None)[0])
    assert_exact(shut[1][:, mask[1]], primal.running_mean(x[1:, :, mask[1]], None)[0])
    assert not shut[0][:, ~mask[0]].any()


@pytest.mark.parametrize("landmarks", [1, 3, 7], ids="l{}".format)
def test_causal_weights_of_a_prefix_of_landmark_length_are_the_full_ones(landmarks: int) -> None:
    x, weights = points(2, HEADS, 7, HEAD), points(HEADS, landmarks, RANK, seed=1)
    grown = primal.causal_landmark_weights(x, None, weights)
    full = primal.landmark_weights(x[:, :, :landmarks], None, weights)
    assert_exact(grown[:, :, landmarks - 1], full)
    # One matrix form for all t: slots repeat, and the sum is scaled back to `landmarks` terms.
    slots = weights[:, torch.arange(7) % landmarks]
    sums = (x.unsqueeze(-1) * slots.unsqueeze(-2)).cumsum(2)
    count = torch.arange(1, 8, dtype=torch.float64)
    assert_exact(grown, sums * (count.clamp(max=landmarks) / count)[:, None, None])


def test_causal_data_dependent_layer_scores_each_point_with_its_own_weights() -> None:
    x, p = points(2, 5, WIDTH), layer(3)
    left_weights = primal.causal_landmark_weights(heads_of(x), None, p["left"])
    right_weights = primal.causal_landmark_weights(heads_of(x), None, p["right"])
    left = torch.einsum("bhnd,bhnds->bhns", unit(project_x(x, p, "query")), left_weights)
    right = torch.einsum("bhnd,bhnds->bhns", unit(project_x(x, p, "key")), right_weights)
    result = primal.primal_layer(x, p, heads=HEADS, landmarks=3, causal=True)
    assert_exact(result.output, out_of(left, right, p))
    assert_exact(result.projected_trace, (left_weights * right_weights)[:, :, -1].sum((2, 3)))


def test_cross_layer_is_its_matrix_form() -> None:
    x, context, p = points(2, 4, WIDTH), points(2, 6, WIDTH, seed=1), layer(3)
    chosen = heads_of(context[:, [0, 2, 5]])
    left = unit(project_x(x, p, "query")) @ (chosen.mT @ p["left"])
    right = unit(project_x(context, p, "key")) @ (chosen.mT @ p["right"])
    result = primal.primal_layer(x, p, heads=HEADS, landmarks=3, context=context)
    assert_exact(result.left_scores, left)
    assert_exact(result.right_scores, right)
    assert_exact(result.output, out_of(left, torch.zeros_like(left), p))
    assert_exact(result.right_moments, right.square().mean(2))


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("landmarks", [None, 3], ids=["weights", "landmarks"])
def test_padding_anywhere_is_as_if_it_were_not_there(landmarks: int | None, causal: bool) -> None:
    p = layer(landmarks or HEAD)
    mask = torch.tensor([[False, True, True, False, True, True], [False] * 6, [True] * 6])
    x = points(3, 6, WIDTH).masked_fill(~mask.unsqueeze(-1), math.nan)
    call = partial(primal.primal_layer, params=p, heads=HEADS, landmarks=landmarks, causal=causal)
    padded = call(x, mask=mask)
    for sample in (0, 2):
        real = mask[sample]
        alone = call(x[sample : sample + 1, real])
        assert torch.equal(padded.output[sample, real], alone.output[0])
        assert torch.equal(padded.right_scores[sample][:, real], alone.right_scores[0])
        assert torch.equal(padded.left_moments[sample], alone.left_moments[0])
        assert torch.equal(padded.projected_trace[sample], alone.projected_trace[0])
    assert not padded.output[~mask].any()
    assert not padded.left_moments[1].any()


@pytest.mark.parametrize("landmarks", [None, 3], ids=["weights", "landmarks"])
def test_a_causal_output_does_not_see_what_comes_later(landmarks: int | None) -> None:
    x, p = points(1, 6, WIDTH), layer(landmarks or HEAD)
    call = partial(primal.primal_layer, params=p, heads=HEADS, landmarks=landmarks, causal=True)
    other = torch.cat([x[:, :4], points(1, 2, WIDTH, seed=1)], 1)
    assert torch.equal(call(x).output[:, :4], call(other).output[:, :4])
    assert not torch.equal(call(x).output[:, 4:], call(other).output[:, 4:])


def test_padded_context_is_not_read() -> None:
    x, p, mask = points(2, 3, WIDTH), layer(3), keep([4, 0], 5)
    context = points(2, 5, WIDTH, seed=1).masked_fill(~mask.unsqueeze(-1), math.nan)
    call = partial(primal.primal_layer, params=p, heads=HEADS, landmarks=3)
    result = call(x, context=context, context_mask=mask)
    assert torch.equal(result.output[:1], call(x[:1], context=context[:1, :4]).output)
    nothing = torch.zeros(1, HEADS, 3, RANK, dtype=torch.float64)
    assert_exact(result.output[1:], out_of(nothing, nothing, p))


def test_maps_that_change_the_width_reach_the_landmarks_too() -> None:
    phi = partial(kernels.polynomial_features, degree=2, offset=1.0)
    x, p = points(1, 5, WIDTH), layer(3)
    chosen = kernels.map_rows(heads_of(x[:, [0, 2, 4]]), phi)
    left = kernels.map_rows(project_x(x, p, "query"), phi) @ (chosen.mT @ p["left"])
    result = primal.primal_layer(x, p, heads=HEADS, landmarks=3, phi=phi, landmark_phi=phi)
    assert_exact(result.left_scores, left)


def test_learned_pattern_is_its_factors() -> None:
    left, right, root = points(1, 2, 4, 3), points(1, 2, 6, 3, seed=1), points(2, 3, seed=2)
    values = root.square() / (2 / (1 / 4 + 1 / 6))
    expected = (left * values.unsqueeze(1)) @ right.mT
    assert_exact(primal.learned_pattern(left, right, root), expected)
    mask = keep([2], 4)
    short = primal.learned_pattern(left[:, :, :2], right, root)
    assert_exact(primal.learned_pattern(left, right, root, left_mask=mask)[:, :, :2], short)


def test_at_the_optimum_the_learned_pattern_is_the_kernel_and_the_penalty_is_zero() -> None:
    features, others = points(5, 3), points(5, 3, seed=1)
    left, values, right = ksvd.kernel_svd(features @ others.mT, 3)
    left_weights, right_weights = ksvd.primal_weights(features, others, left, right)
    e = ksvd.primal_scores(features, left_weights)[None, None]
    r = ksvd.primal_scores(others, right_weights)[None, None]
    root = (5 / values).sqrt()[None]
    assert_exact(primal.learned_pattern(e, r, root)[0, 0], features @ others.mT)
    trace = (left_weights * right_weights).sum()[None]
    worth = head_objective(primal.second_moments(e), primal.second_moments(r), root, trace)
    assert abs(worth.item()) < 1e-10 * values.sum().item()


@pytest.mark.parametrize("name", MAPS)
def test_features_multiply_to_the_kernel(name: str) -> None:
    kernel, phi = MAPS[name]
    query, key = points(4, 3), points(5, 3, seed=1)
    inner = kernels.map_rows(query, phi) @ kernels.map_rows(key, phi).mT
    assert_exact(kernels.entries(kernel, query, key), inner)


def test_kernels_have_their_closed_forms() -> None:
    query, key = points(4, 3), points(5, 3, seed=1)
    relu, elu = torch.relu, lambda z: torch.nn.functional.elu(z) + 1
    closed = {
        "identity": query @ key.mT,
        "cosine": torch.cosine_similarity(query[:, None], key[None], dim=-1),
        "relu": relu(query) @ relu(key).mT,
        "elu": elu(query) @ elu(key).mT,
        "square": (query @ key.mT + 1) ** 2,
        "cube": (query @ key.mT) ** 3,
    }
    for name, expected in closed.items():
        assert_exact(kernels.entries(MAPS[name][0], query, key), expected)
    exponential = kernels.entries(kernels.exponential_kernel, query, key)
    assert_exact(exponential, (query @ key.mT / math.sqrt(3)).exp())


def test_a_zero_row_has_cosine_zero() -> None:
    assert not kernels.cosine_features(torch.zeros(3)).any()
    assert kernels.cosine_kernel(torch.zeros(3), torch.ones(3)) == 0


@pytest.mark.parametrize("degree", [1, 2, 3, 4], ids="degree{}".format)
def test_polynomial_features_are_counted_by_a_binomial(degree: int) -> None:
    features = kernels.polynomial_features(points(3), degree=degree, offset=0.5)
    assert len(features) == math.comb(3 + degree, degree)


def test_exponential_features_average_to_the_kernel() -> None:
    # Gauss-Hermite nodes in place of normal draws: the mean over frequencies is then an integral.
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)
    frequencies = torch.cartesian_prod(torch.tensor(nodes), torch.tensor(nodes))
    share = torch.tensor(np.outer(weights, weights).ravel() / weights.sum() ** 2)
    query, key = points(2), points(2, seed=1)
    left = kernels.exponential_features(query, frequencies=frequencies)
    right = kernels.exponential_features(key, frequencies=frequencies)
    mean = (left * right * len(frequencies) * share).sum()
    assert_exact(mean, torch.tensor(kernels.exponential_kernel(query, key), dtype=torch.float64))


@pytest.mark.parametrize("shape", [(1, 1), (6, 4), (4, 6), (5, 5), (12, 3)], ids=str)
def test_jacobi_agrees_with_lapack(shape: tuple[int, int]) -> None:
    pattern = points(*shape)
    left, values, right = ksvd.kernel_svd(pattern)
    u, s, vt = np.linalg.svd(pattern.numpy(), full_matrices=False)
    assert_exact(values, torch.tensor(s))
    assert_same_span(left, torch.tensor(u))
    assert_same_span(right, torch.tensor(vt.T.copy()))
    assert_exact(left.mT @ left, torch.eye(len(values), dtype=torch.float64))
    assert_exact(right.mT @ right, torch.eye(len(values), dtype=torch.float64))
    assert_exact(pattern @ right, left * values)
    assert_exact(pattern.mT @ left, right * values)
    assert_exact(ksvd.reconstruction(left, values, right), pattern)
    top = ksvd.kernel_svd(pattern, 1)
    assert torch.equal(top[0], left[:, :1])
    assert torch.equal(top[1], values[:1])


def test_jacobi_on_known_and_deficient_patterns() -> None:
    diagonal = torch.diag(torch.tensor([1.0, 1e-8, -3.0], dtype=torch.float64))
    assert_exact(ksvd.kernel_svd(diagonal)[1], torch.tensor([3.0, 1.0, 1e-8], dtype=torch.float64))
    thin = points(6, 2) @ points(2, 5, seed=1)
    left, values, right = ksvd.kernel_svd(thin)
    assert not values[2:].any()
    assert not left[:, 2:].any()
    assert_exact(ksvd.reconstruction(left, values, right), thin)
    assert not ksvd.kernel_svd(torch.zeros(3, 2))[1].any()


@pytest.mark.parametrize("pattern", [points(5, 5), points(6, 3), points(6, 2) @ points(2, 5, seed=1)])
def test_pseudo_inverse_is_numpys(pattern: Tensor) -> None:
    expected = np.linalg.pinv(pattern.numpy(), rcond=1e-14)
    assert_exact(ksvd.pseudo_inverse(pattern), torch.tensor(expected))


@pytest.mark.parametrize("rank", [1, 2, 4], ids="s{}".format)
def test_primal_scores_are_dual_scores_and_the_objective_is_zero(rank: int) -> None:
    features, others = points(6, 4), points(5, 4, seed=1)
    pattern = features @ others.mT
    left, values, right = ksvd.kernel_svd(pattern, rank)
    left_weights, right_weights = ksvd.primal_weights(features, others, left, right)
    assert_exact(ksvd.primal_scores(features, left_weights), left * values)
    assert_exact(ksvd.primal_scores(others, right_weights), right * values)
    assert_exact(ksvd.dual_scores(pattern, right), left * values)
    assert_exact(ksvd.dual_scores(pattern.mT, left), right * values)
    assert_exact((left_weights * right_weights).sum(), values.sum())
    worth = ksvd.objective(features, others, left_weights, right_weights, 1 / values)
    assert abs(worth) < 1e-10 * values.sum().item()
    assert abs(ksvd.dual_objective(left, values, right)) < 1e-10 * values.sum().item()


def test_objective_away_from_the_solution_is_its_matrix_form() -> None:
    features, others, weights = points(6, 4), points(5, 4, seed=1), points(3, seed=2).abs()
    e, r = points(4, 3, seed=3), points(4, 3, seed=4)
    variance = ((features @ e).square() @ weights).sum() + ((others @ r).square() @ weights).sum()
    expected = variance / 2 - torch.trace(e.mT @ r)
    assert_exact(torch.tensor(ksvd.objective(features, others, e, r, weights), dtype=torch.float64), expected)


def test_head_objective_by_hand() -> None:
    left = torch.tensor([[[1.0, 2.0]], [[3.0, 0.0]]])
    right = torch.tensor([[[1.0, 0.0]], [[1.0, 1.0]]])
    root = torch.tensor([[2.0, -1.0]])
    # 1/2 (4 (1 + 1) + 1 (2 + 0)) = 5 and 1/2 (4 (3 + 1) + 1 (0 + 1)) = 8.5
    of_weights = head_objective(left, right, root, torch.tensor([0.5]))
    assert of_weights.tolist() == [[4.5], [8.0]]
    projected = head_objective(left, right, root, torch.tensor([[5.0], [0.5]]))
    assert projected.tolist() == [[0.0], [8.0]]


def test_penalty_by_hand() -> None:
    first = torch.tensor([[1.0, 3.0], [-2.0, -2.0]])  # head means 2 and -2: the batch cancels
    again = torch.tensor([[3.0, 5.0], [2.0, 2.0]])  # head means 4 and 2; with `first` 3 and 0
    second = torch.tensor([[1.0, 1.0], [3.0, 3.0]])
    assert penalty([[first]], reduction="batch") == 0
    assert penalty([[first]], reduction="sample") == 4
    assert penalty([[first, again]], reduction="batch") == 1.5**2
    assert penalty([[first, again]], reduction="sample") == 4.5
    assert penalty([[first], [second]], reduction="batch", layers="mean") == 2
    assert penalty([[first], [second]], reduction="batch", layers="sum") == 4
    assert penalty([[first], [second]], reduction="sample", layers="mean") == 4.5
    assert penalty([[first], [second]], reduction="sample", layers="sum") == 9
    with pytest.raises(ValueError, match="reduction is 'token', expected 'batch' or 'sample'"):
        penalty([[first]], reduction="token")


def sides(n: int = 5, m: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    return points(2, 2, n, 3), points(2, 2, m, 3, seed=1), points(2, 2, m, 4, seed=2)


def allowed(mask: Tensor | None, n: int, m: int, causal: bool) -> Tensor:
    seen = torch.ones(n, m, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    return seen[None, None] if mask is None else seen & mask[:, None, None, :]


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("lengths", [None, [5, 2]], ids=["full", "padded"])
def test_rivals_are_their_matrix_forms(lengths: list[int] | None, causal: bool) -> None:
    query, key, value = sides()
    mask = None if lengths is None else keep(lengths, 5)
    seen = allowed(mask, 5, 5, causal)
    dense = scaled_dot_product_attention(query, key, value, attn_mask=seen)
    assert_exact(rivals.softmax_attention(query, key, value, mask=mask, causal=causal), dense)

    def normalised(features: Callable[[Tensor], Tensor]) -> Tensor:
        weights = (features(query) @ features(key).mT) * seen
        return weights / weights.sum(-1, keepdim=True) @ value

    expected = normalised(lambda z: torch.nn.functional.elu(z) + 1)
    assert_exact(rivals.linear_attention(query, key, value, mask=mask, causal=causal), expected)

    frequencies = points(7, 3, seed=3)

    def positive(z: Tensor) -> Tensor:
        z = z / 3**0.25
        return (z @ frequencies.mT - z.square().sum(-1, keepdim=True) / 2).exp()

    actual = rivals.performer_attention(query, key, value, frequencies, mask=mask, causal=causal)
    assert_exact(actual, normalised(positive))


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("lengths", [None, [5, 2]], ids=["full", "padded"])
def test_factors_are_their_matrix_form(lengths: list[int] | None, causal: bool) -> None:
    left, right, value = sides()
    values, mask = points(2, 3, seed=3), None if lengths is None else keep(lengths, 5)
    seen = allowed(mask, 5, 5, causal)
    entries = (left * values[:, None]) @ right.mT * seen / seen.sum(-1, keepdim=True)
    actual = cores.factored_attention(left, values, right, value, mask=mask, causal=causal)
    assert_exact(actual, entries @ value)


def test_rivals_give_zero_where_nothing_is_seen() -> None:
    query, key, value = sides()
    mask, means = keep([5, 0], 5), points(2, 2, 2, 3)
    for output in (
        rivals.softmax_attention(query, key, value, mask=mask),
        rivals.linear_attention(query, key, value, mask=mask),
        rivals.performer_attention(query, key, value, points(4, 3), mask=mask),
        rivals.nystrom_attention(query, key, value, means, means, mask=mask),
    ):
        assert output[0].all()
        assert not output[1].any()


def test_segment_means_of_an_even_split_are_block_means() -> None:
    x = points(2, 2, 6, 3)
    assert_exact(rivals.segment_means(x, None, 3), x.unflatten(2, (3, 2)).mean(3))
    mask = torch.tensor([[True, False, True, True, False, True], [False] * 6])
    shut = rivals.segment_means(x, mask, 2)
    assert_exact(shut[0, :, 0], (x[0, :, 0] + x[0, :, 2]) / 2)
    assert_exact(shut[0, :, 1], (x[0, :, 3] + x[0, :, 5]) / 2)
    assert not shut[1].any()
    assert torch.equal(rivals.segment_means(x[:, :, :2], None, 4), x[:, :, [0, 0, 1, 1]])


@pytest.mark.parametrize("count", [4, 6], ids=["each point once", "points repeated"])
def test_nystrom_with_every_point_a_landmark_is_softmax(count: int) -> None:
    query, key, value = sides(4, 4)
    means = [rivals.segment_means(side, None, count) for side in (query, key)]
    actual = rivals.nystrom_attention(query, key, value, *means)
    assert_exact(actual, rivals.softmax_attention(query, key, value))


def test_nystrom_is_its_matrix_form() -> None:
    query, key, value = sides(4, 6)
    mask = keep([6, 4], 6)
    lq, lk = points(2, 2, 3, 3, seed=4), points(2, 2, 3, 3, seed=5)
    scale = math.sqrt(3)
    far = (lq @ key.mT / scale).masked_fill(~mask[:, None, None], -math.inf).softmax(-1)
    core = torch.linalg.pinv((lq @ lk.mT / scale).softmax(-1))
    expected = (query @ lk.mT / scale).softmax(-1) @ core @ far @ value
    assert_exact(rivals.nystrom_attention(query, key, value, lq, lk, mask=mask), expected)
