"""Primal attention as functions: check the axes once, then compute."""

import torch
from torch import Tensor

from kernelhead.errors import BadInput
from kernelhead.kernels import AbstractKernel, Cosine
from kernelhead.ops.backends import WIDEST, landmark_backend, primal_backend, scan_backend
from kernelhead.ops.eager import primal as eager
from kernelhead.shapes import check_axes, check_mask

COSINE = Cosine()
_INDICES: dict[tuple[int, int, torch.device], Tensor] = {}


def landmark_index(count: int, length: int | Tensor, *, device: torch.device | None = None) -> Tensor:
    r"""Positions of `count` evenly spaced landmarks among `length` points, the first and last included.

    The rule of the published layers, without their round trip through the host: with
    $\delta = (n-1)/(l-1)$, position i is $\lfloor \delta i \rfloor$ in the first half and
    $\lfloor (n-1) - \delta (l-1-i) \rfloor$ in the second. More landmarks than points repeat points.

    Shapes: length a number or (...) whole numbers; returns (count,) or (..., count).

    Example:
        >>> landmark_index(4, 10)
        tensor([0, 3, 6, 9])
        >>> landmark_index(4, torch.tensor([2, 7]))
        tensor([[0, 0, 0, 1],
                [0, 2, 4, 6]])
    """
    if isinstance(length, Tensor):
        device, last = length.device, (length.clamp_min(1) - 1).to(torch.float64).unsqueeze(-1)
    else:
        last = torch.full((1,), max(length, 1) - 1, dtype=torch.float64, device=device)
    place = torch.arange(count, dtype=torch.float64, device=device)
    step = last / max(count - 1, 1)
    front, back = step * place, last - step * (count - 1 - place)
    # One landmark is the first point: its place counts as front.
    return torch.where(place < max(count // 2, 1), front, back).to(torch.int64)


def _cached_index(count: int, length: int, device: torch.device) -> Tensor:
    """The index of one length, made once; never a tensor that only a tracer can use."""
    key = count, length, device
    if key not in _INDICES:
        # A tensor made in inference mode could not serve a later training step.
        with torch.inference_mode(False):
            made = landmark_index(count, length, device=device)
        if type(made) is not Tensor:
            return made
        if len(_INDICES) >= 256:
            _INDICES.clear()
        _INDICES[key] = made
    return _INDICES[key]


def gather_landmarks(points: Tensor, count: int, *, mask: Tensor | None = None) -> Tensor:
    """Evenly spaced rows of (b, n, c), counted over the real points of each batch row: (b, l, c).

    Args:
        count: how many landmarks, l.

    Example:
        >>> x = torch.arange(4.0)[None, :, None]
        >>> gather_landmarks(x, 2, mask=torch.tensor([[False, True, True, False]])).flatten()
        tensor([1., 2.])
    """
    check_axes("gather_landmarks", points=(points, "b n c"))
    check_mask("gather_landmarks", mask, points)
    places = _landmark_places(points, count, mask)
    if mask is None:
        return points.index_select(1, places)
    return points.gather(1, places.unsqueeze(-1).expand(-1, -1, points.shape[-1]))


def _landmark_places(points: Tensor, count: int, mask: Tensor | None) -> Tensor:
    """Where the landmarks stand, (l,), or (b, l) where a mask says which points are real."""
    if mask is None:
        find = landmark_index if torch.compiler.is_compiling() else _cached_index
        return find(count, points.shape[1], device=points.device)
    # The i-th real point stands where the count of real points first exceeds i.
    wanted, seen = landmark_index(count, mask.sum(-1)) + 1, mask.cumsum(-1)
    if torch.compiler.is_compiling():
        # A sum of comparisons is fused, and exporters know it.
        places = (seen.unsqueeze(-2) < wanted.unsqueeze(-1)).sum(-1)
    else:
        places = torch.searchsorted(seen, wanted)
    return places.clamp_max(points.shape[1] - 1)


def primal_weights(
    points: Tensor,
    left: Tensor,
    right: Tensor,
    *,
    kernel: AbstractKernel = COSINE,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Data-dependent weights of both sides, $W_{e|X} = F^\top W_e$, with F evenly spaced real points.

    Shapes: points (b, n, c), left and right (h, l, s) for l landmarks; mask (b, n), True where real;
    returns two (b, h, p, s), p the features that the kernel makes of c/h.

    Raises:
        ShapeError: two axes disagree.
        BadInput: the heads do not divide the width, or the mask does not fit.

    Example:
        >>> weights = primal_weights(torch.eye(4)[None], torch.ones(2, 4, 1), torch.zeros(2, 4, 1))
        >>> weights[0].flatten(), weights[1].shape
        (tensor([1., 1., 1., 1.]), torch.Size([1, 2, 2, 1]))
    """
    who = "primal_weights"
    check_axes(who, points=(points, "b n c"), left=(left, "h l s"), right=(right, "h l s"))
    check_mask(who, mask, points)
    heads, count, _ = left.shape
    if points.shape[-1] % heads:
        raise BadInput(f"{who}: width {points.shape[-1]} does not split into {heads} heads")
    if landmark_backend(points, left, kernel) == "triton":
        from kernelhead.ops.triton.library import landmark_core

        mixed = torch.is_autocast_enabled("cuda")
        kind = torch.get_autocast_dtype("cuda") if mixed else points.dtype
        return landmark_core(points, _landmark_places(points, count, mask), left, right, kind)
    rows = gather_landmarks(points, count, mask=mask).unflatten(-1, (heads, -1)).transpose(1, 2)
    return landmark_weights(kernel.landmark_features(rows), left, right)


def landmark_weights(landmarks: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Data-dependent weights: landmark rows times weights per landmark, both sides in one product.

    Shapes: landmarks (... l p), left and right (... l s); returns two (... p s).
    """
    axes = {"landmarks": (landmarks, "... l p"), "left": (left, "... l s"), "right": (right, "... l s")}
    check_axes("landmark_weights", **axes)
    both = landmarks.mT @ torch.cat([left, right], dim=-1).to(landmarks.dtype)
    first, second = both.split(left.shape[-1], dim=-1)
    return first, second


def primal_scores(
    query: Tensor,
    key: Tensor,
    left: Tensor,
    right: Tensor,
    *,
    kernel: AbstractKernel = COSINE,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Scores of both sides, $e_i = W_e^\top \phi(q_i)$ and $r_j = W_r^\top \phi(k_j)$.

    Shapes: query (... n d), key (... m d), left and right (... p s), where p is d for maps that keep
    the width; mask (... n), True where real, for both sides; returns (... n s) and (... m s).

    Args:
        kernel: whose features the scores are taken of.

    Raises:
        ShapeError: two axes disagree.

    Example:
        >>> e, r = primal_scores(torch.eye(3), torch.eye(3), torch.ones(3, 2), torch.zeros(3, 2))
        >>> e.shape, float(r.abs().sum())
        (torch.Size([3, 2]), 0.0)
    """
    _check_sides("primal_scores", query, key, left, right, kernel)
    _check_real("primal_scores", mask, query)
    left, right = left.to(query.dtype), right.to(query.dtype)
    return eager.primal_scores(query, key, left, right, kernel, mask)


def primal_attention(
    query: Tensor,
    key: Tensor | None,
    left: Tensor,
    right: Tensor,
    join: Tensor,
    bias: Tensor,
    *,
    kernel: AbstractKernel = COSINE,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    r"""Primal attention $o_i = C\,[e_i; r_i] + c$ at O(n d^2), with no n-by-n and no n-by-s matrix.

    Shapes: query, key (... n d), or query (b, n, 2, h, d) with both, as one projection gives them, and
    no key; left and right (... p s), join (... d 2s), bias (... d) or, per head, (... 1 d); mask (... n),
    True where real; returns (... n d), zero at padded points.

    Args:
        kernel: whose features the scores are taken of.
        causal: whether queries and keys are replaced by their running means, so that a point sees
            itself and those before it.

    Raises:
        ShapeError: two axes disagree.

    Example:
        >>> x, w = torch.eye(3), torch.ones(3, 2)
        >>> primal_attention(x, x, w, w, torch.ones(3, 4), torch.zeros(3))[0]
        tensor([4., 4., 4.])
    """
    packed, (query, key) = (query if key is None else None), _sides(query, key)
    left, right, join, bias = _checked("primal_attention", query, key, left, right, join, bias, kernel)
    _check_real("primal_attention", mask, query)
    if primal_backend(query, key, left, join, bias, kernel, mask) == "triton":
        from kernelhead.ops.triton.library import primal_core

        points: tuple[Tensor, Tensor | None] = (query, key) if packed is None else (packed, None)
        return primal_core(*points, left, right, join, bias, _flat(mask), False, causal)[0]
    if causal:
        query, key = running_means(query, mask=mask), running_means(key, mask=mask)
    return eager.primal_attention(query, key, left, right, join, bias, kernel, mask)


def primal_attention_moments(
    query: Tensor,
    key: Tensor | None,
    left: Tensor,
    right: Tensor,
    join: Tensor,
    bias: Tensor,
    *,
    kernel: AbstractKernel = COSINE,
    mask: Tensor | None = None,
    causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """`primal_attention` and the second moments of both scores, which the KSVD objective needs.

    Shapes: as `primal_attention`; returns its output and two (... s), means over the real points
    in float32 or better.
    """
    packed, (query, key) = (query if key is None else None), _sides(query, key)
    who = "primal_attention_moments"
    left, right, join, bias = _checked(who, query, key, left, right, join, bias, kernel)
    _check_real(who, mask, query)
    if primal_backend(query, key, left, join, bias, kernel, mask) == "triton":
        from kernelhead.ops.triton.library import primal_core

        points: tuple[Tensor, Tensor | None] = (query, key) if packed is None else (packed, None)
        output, *sums = primal_core(*points, left, right, join, bias, _flat(mask), True, causal)
        count = eager.real_points(query, mask)[..., None]
        return output, sums[0] / count, sums[1] / count
    if causal:
        query, key = running_means(query, mask=mask), running_means(key, mask=mask)
    return eager.primal_attention_moments(query, key, left, right, join, bias, kernel, mask)


def primal_pairs(
    query: Tensor,
    key: Tensor | None,
    left: Tensor,
    right: Tensor,
    *,
    kernel: AbstractKernel = COSINE,
    mask: Tensor | None = None,
) -> Tensor:
    """Both scores of each point side by side, $[e_i; r_i]$, what a join takes; without gradients.

    Shapes: as `primal_attention`; returns (... n 2s), zero at padded points.

    Args:
        kernel: whose features the scores are taken of.

    Example:
        >>> x, w = torch.eye(3), torch.ones(3, 2)
        >>> primal_pairs(x, x, w, 2 * w)[0]
        tensor([1., 1., 2., 2.])
    """
    packed, (query, key) = (query if key is None else None), _sides(query, key)
    who, s = "primal_pairs", left.shape[-1]
    _check_sides(who, query, key, left, right, kernel)
    check_axes(who, query=(query, "... n d"), key=(key, "... n d"))
    _check_real(who, mask, query)
    left, right = left.to(query.dtype), right.to(query.dtype)
    unit, none = torch.eye(2 * s, dtype=query.dtype, device=query.device), query.new_zeros(2 * s)
    with torch.no_grad():
        if 2 * s <= WIDEST and primal_backend(query, key, left, unit, none, kernel, mask) == "triton":
            from kernelhead.ops.triton.library import primal_core

            points: tuple[Tensor, Tensor | None] = (query, key) if packed is None else (packed, None)
            return primal_core(*points, left, right, unit, none, _flat(mask), False, False)[0]
        return torch.cat(eager.primal_scores(query, key, left, right, kernel, mask), dim=-1)


def folded_maps(left: Tensor, right: Tensor, join: Tensor) -> tuple[Tensor, Tensor]:
    r"""Weights and join as one map a side, from features to outputs.

    They are $W_e C_e^\top$ and $W_r C_r^\top$, with the join $C = [C_e, C_r]$.

    Shapes: left and right (... p s), join (... d 2s); returns two (... p d) in the precision of `left`.

    Raises:
        ShapeError: two axes disagree.
        BadInput: `join` does not take the scores of both sides.

    Example:
        >>> left_map, _ = folded_maps(torch.ones(3, 2), torch.ones(3, 2), torch.ones(5, 4))
        >>> left_map.shape, float(left_map[0, 0])
        (torch.Size([3, 5]), 2.0)
    """
    check_axes("folded_maps", left=(left, "... p s"), right=(right, "... p s"), join=(join, "... d j"))
    _check_join("folded_maps", left, right, join)
    return eager.folded_maps(left, right.to(left.dtype), join.to(left.dtype))


def score_moments(features: Tensor, weight: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Means over real points of the squared scores ``features @ weight``, without making them.

    Shapes: features (... n p), weight (... p s), mask (... n); returns (... s), float32 or better.
    """
    check_axes("score_moments", features=(features, "... n p"), weight=(weight, "... p s"))
    return eager.score_moments(features, weight, mask)


def running_means(points: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Mean of the real points up to each point: the causal form feeds these to the feature map.

    Shapes: points (... n d), mask (... n); returns (... n d).

    Example:
        >>> running_means(torch.tensor([[1.0], [3.0], [5.0]])).flatten()
        tensor([1., 2., 3.])
    """
    check_axes("running_means", points=(points, "... n d"))
    if scan_backend(points, mask) == "triton":
        from kernelhead.ops.triton import prefix_library

        return prefix_library.running_means(points, mask)
    return eager.running_means(points, mask)


def prefix_scores(
    query: Tensor,
    key: Tensor,
    rows: Tensor,
    left: Tensor,
    right: Tensor,
    *,
    kernel: AbstractKernel = COSINE,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Scores with data-dependent weights that are built from the prefix of each point only.

    The u-th real row, from 1, takes slot (u - 1) mod l, from 0:
    $W_t = g_t \sum_{u \le t} x_u w_{(u-1) \bmod l}^\top$,
    where $g_t$ is 1 for the first l rows and l/t after, so that the weights keep their size. At t = l
    they are those of the non-causal layer. Cost O(n p s); the state is one p-by-s matrix a side.

    Shapes: query, key, rows (b, h, n, d), left and right (h, l, s), mask (b, 1, n); returns two (b, h, n, s).

    Args:
        kernel: whose features the scores are taken of.
    """
    sides = {"query": (query, "... n d"), "key": (key, "... n d"), "rows": (rows, "... n d")}
    weights = {"left": (left, "... l s"), "right": (right, "... l s")}
    check_axes("prefix_scores", **sides, **weights)
    left, right = left.to(query.dtype), right.to(query.dtype)
    alike = query.shape == key.shape == rows.shape and left.dim() == right.dim() == 3
    widths = kernel.feature_width(query.shape[-1]), left.shape[-1]
    if alike and scan_backend(query, mask, *widths) == "triton":
        from kernelhead.ops.triton import prefix_library

        return prefix_library.prefix_scores(query, key, rows, left, right, kernel, mask)
    return eager.prefix_scores(query, key, rows, left, right, kernel, mask)


def prefix_growth(seen: Tensor, landmarks: int) -> Tensor:
    r"""What `prefix_scores` scales a sum over `seen` rows by, $g_t$: 1 up to l rows and l/t after.

    Shapes: seen (...) whole numbers; returns (...) in float64.

    Example:
        >>> prefix_growth(torch.tensor([1, 2, 4]), 2)
        tensor([1.0000, 1.0000, 0.5000], dtype=torch.float64)
    """
    return eager.prefix_growth(seen, landmarks)


def prefix_weights(
    rows: Tensor,
    left: Tensor,
    right: Tensor,
    *,
    kernel: AbstractKernel = COSINE,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The weights that `prefix_scores` gives to the last point.

    Shapes: rows (b, h, n, d), left and right (h, l, s), mask (b, 1, n); returns two (b, h, p, s).

    Args:
        kernel: whose features the rows get.
    """
    check_axes("prefix_weights", rows=(rows, "... n d"), left=(left, "... l s"), right=(right, "... l s"))
    return eager.prefix_weights(rows, left.to(rows.dtype), right.to(rows.dtype), kernel, mask)


def _sides(query: Tensor, key: Tensor | None) -> tuple[Tensor, Tensor]:
    """Query and key as (... n d); both from one tensor (b, n, 2, h, d) where there is no key."""
    if key is not None:
        return query, key
    check_axes("primal_attention", query=(query, "b n t h d"))
    first, second = query.unbind(2)
    return first.transpose(1, 2), second.transpose(1, 2)


def _check_real(who: str, mask: Tensor | None, query: Tensor) -> None:
    """A mask over points is boolean and has their number, with axes that broadcast before it."""
    if mask is not None and (mask.dtype != torch.bool or mask.shape[-1:] != query.shape[-2:-1]):
        raise BadInput(
            f"{who}: `mask` is {mask.dtype} of shape {tuple(mask.shape)}, expected torch.bool with "
            f"{query.shape[-2]} points in its last axis"
        )


def _flat(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask[:, 0]


def _checked(
    who: str,
    query: Tensor,
    key: Tensor,
    left: Tensor,
    right: Tensor,
    join: Tensor,
    bias: Tensor,
    kernel: AbstractKernel,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check_sides(who, query, key, left, right, kernel)
    check_axes(
        who, query=(query, "... n d"), key=(key, "... n d"), join=(join, "... d j"), bias=(bias, "... d")
    )
    _check_join(who, left, right, join)
    dtype = query.dtype
    return left.to(dtype), right.to(dtype), join.to(dtype), bias.to(dtype)


def _check_join(who: str, left: Tensor, right: Tensor, join: Tensor) -> None:
    if join.shape[-1] != left.shape[-1] + right.shape[-1]:
        raise BadInput(
            f"{who}: `join` takes {join.shape[-1]} scores, but both sides have {2 * left.shape[-1]}"
        )


def _check_sides(
    who: str, query: Tensor, key: Tensor, left: Tensor, right: Tensor, kernel: AbstractKernel
) -> None:
    if kernel.keeps_width:
        check_axes(who, query=(query, "... n d"), left=(left, "... d s"))
        check_axes(who, key=(key, "... m d"), right=(right, "... d s"))
        check_axes(who, left=(left, "... d s"), right=(right, "... d s"))
        return
    check_axes(who, query=(query, "... n d"), key=(key, "... m d"))
    check_axes(who, left=(left, "... p s"), right=(right, "... p s"))
    if left.shape[-2] != kernel.feature_width(query.shape[-1]):
        width = kernel.feature_width(query.shape[-1])
        raise BadInput(
            f"{who}: {type(kernel).__name__} makes {width} features, but `left` takes {left.shape[-2]}"
        )
