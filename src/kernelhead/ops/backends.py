"""Which backend fits a tensor: a pure function of what is given."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kernelhead.kernels import AbstractKernel, Cosine

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PLAIN = (Tensor, torch.nn.Parameter)  # types of tensors whose numbers lie where kernels look for them
WIDEST = 128
SHORT_WIDTHS = (16, 32, 64)  # of points whose features are made by kernels
SCARCE = 6144  # entries of such kernels' matrices that every device since Ampere has shared memory for
LARGEST_SIDES = 2**13  # such entries for `BLACKWELL`, since Triton 3.7; of more it makes a trap
MOST_TAPS = 64
MOST_ROWS = 1024  # of a table
LARGEST_INVERSE = 64  # rows of a matrix
LARGEST_LAYER = 2**13  # entries of a feed-forward's weight
MOST_MAPS, LARGEST_MAPS = 3, 3 * 2**12  # linear maps of the same points, and entries of all their weights
FARTHEST = 2**31  # places that a number of 32 bits tells apart
HAS_TRITON = find_spec("triton") is not None
# To ask `find_spec` would import a second's worth of torch.
HAS_LENGTHS = (Path(torch.__file__).parent / "nn" / "attention" / "varlen.py").exists()
HOPPER, BLACKWELL = 9, 10  # compute capabilities of GPUs for data centres, with 227 KiB of shared memory
FLASH = 8  # the compute capability from which PyTorch's flash kernels run
MANY_KEYS = 512  # from which the kernel for sequences of different lengths is faster than one with a mask
GRID = 2**16 - 1  # blocks of a grid along all but its first axis
MANY_PAIRS = 2**27  # of queries and keys; fewer take less time than the launches that pack them


def _release(name: str) -> tuple[int, ...]:
    """The first two numbers of a package's version; zeros where nothing of that name says it."""
    try:
        return tuple(int(part) for part in version(name).split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return 0, 0


TRITON = _release("triton")  # nightly builds and those for other makers' devices have other names


def on_cuda(points: Tensor) -> bool:
    """Whether kernels can reach a tensor: it lies on a CUDA device and is none of a stack under vmap."""
    return points.is_cuda and not torch._C._functorch.is_batchedtensor(points)


def primal_backend(
    query: Tensor,
    key: Tensor,
    left: Tensor,
    join: Tensor,
    bias: Tensor,
    kernel: AbstractKernel,
    mask: Tensor | None,
) -> str:
    """ "triton" for the cosine map on a CUDA device in up to float32, else "eager".

    The kernels serve (b, h, n, d) points of up to 128 features with up to 128 components, of any
    strides in the first three axes.

    Example:
        >>> x = torch.zeros(1, 1, 2, 4)
        >>> primal_backend(x, x, torch.zeros(1, 4, 2), torch.zeros(4, 4), torch.zeros(4), Cosine(), None)
        'eager'
    """
    fits = (
        on_cuda(query)
        and isinstance(kernel, Cosine)
        and query.dim() == 4
        and key.shape == query.shape
        and query.dtype in DTYPES
        and query.stride(-1) == 1
        and key.stride(-1) == 1
        and max(query.shape[-1], left.shape[-1]) <= WIDEST
        and left.dim() in (3, 4)
        and (join.dim(), bias.dim()) in ((2, 1), (3, 3))
        and (mask is None or (mask.shape == (query.shape[0], 1, query.shape[2])))
    )
    return "triton" if fits and HAS_TRITON else "eager"


def landmark_backend(points: Tensor, left: Tensor, kernel: AbstractKernel) -> str:
    """ "triton" for maps that keep the points as landmarks, on a CUDA device in up to float32, else "eager".

    Example:
        >>> landmark_backend(torch.zeros(1, 3, 8), torch.zeros(2, 3, 4), Cosine())
        'eager'
    """
    fits = (
        on_cuda(points)
        and kernel.keeps_width
        and points.dtype in DTYPES
        and points.stride(-1) == 1
        and max(points.shape[-1] // left.shape[0], left.shape[-1]) <= WIDEST
    )
    return "triton" if fits and HAS_TRITON else "eager"


def scan_backend(points: Tensor, mask: Tensor | None, *widths: int) -> str:
    """ "triton" for (b, h, n, d) points on a CUDA device in up to float32, else "eager".

    The kernels serve any strides in the first three axes and a mask (b, 1, n).

    Args:
        points: what is summed up.
        mask: which points are real.
        widths: sizes of a state that stays on chip.

    Example:
        >>> scan_backend(torch.zeros(1, 1, 2, 4), None)
        'eager'
    """
    fits = (
        on_cuda(points)
        and points.dim() == 4
        and points.numel() > 0
        and points.dtype in DTYPES
        and points.stride(-1) == 1
        and max(widths, default=0) <= WIDEST
        and (mask is None or mask.shape == (points.shape[0], 1, points.shape[2]))
    )
    return "triton" if fits and HAS_TRITON else "eager"


def step_backend(query: Tensor, state: Tensor, weight: Tensor, kernel: AbstractKernel) -> str:
    """ "triton" for one point (b, h, 1, d) with the cosine map and a float32 state on a CUDA device.

    Example:
        >>> x = torch.zeros(1, 1, 1, 4)
        >>> step_backend(x, torch.zeros(1, 1, 4), torch.zeros(1, 4, 2), Cosine())
        'eager'
    """
    fits = (
        on_cuda(query)
        and isinstance(kernel, Cosine)
        and query.numel() > 0
        and query.dtype in DTYPES
        and state.dtype == torch.float32
        and max(query.shape[-1], weight.shape[-1]) <= WIDEST
    )
    return "triton" if fits and HAS_TRITON else "eager"


def local_backend(x: Tensor, weight: Tensor) -> str:
    """ "triton" for up to 64 taps over points on a CUDA device in up to float32, else "eager".

    Example:
        >>> local_backend(torch.zeros(1, 3, 4), torch.zeros(3, 4))
        'eager'
    """
    fits = (
        on_cuda(x)
        and x.numel() > 0
        and x.dtype in DTYPES
        and x.stride(-1) == 1
        and 0 < len(weight) <= MOST_TAPS
        and weight.dtype in DTYPES
    )
    return "triton" if fits and HAS_TRITON else "eager"


def softmax_backend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, plain: bool) -> str:
    """ "packed" for many keys in half precision with a mask on a CUDA device, else "eager".

    Args:
        query: (b, h, n, d), as are key and value with m points.
        key: of the same width.
        value: of the same width.
        mask: (b, 1, m); without one every key is real, and no kernel is faster than PyTorch's choice.
        plain: whether nothing else is asked for, such as an order of points, dropout or a scale.

    Example:
        >>> x = torch.zeros(1, 1, 2, 8)
        >>> softmax_backend(x, x, x, None, plain=True)
        'eager'
    """
    if mask is None or not plain or not HAS_LENGTHS or not all(map(on_cuda, (query, key, value, mask))):
        return "eager"
    if _is_differentiated_otherwise():
        return "eager"
    fits = (
        query.dim() == key.dim() == 4
        and query.dtype == key.dtype == value.dtype
        and query.dtype in DTYPES[1:]
        and query.dtype == products_of(query)
        and key.shape == value.shape == (*query.shape[:2], *key.shape[2:])
        and query.shape[-1] == key.shape[-1] <= WIDEST
        and query.shape[-1] % 8 == 0
        and query.numel() > 0
        and key.shape[-2] >= MANY_KEYS
        and query.shape[:-1].numel() * key.shape[-2] >= MANY_PAIRS
        and mask.shape == (key.shape[0], 1, key.shape[2])
        and 2 * query.shape[0] <= GRID
        and _counted(query) < FARTHEST
        and _counted(key) < FARTHEST
        and torch.cuda.get_device_properties(query.device).major >= FLASH
    )
    return "packed" if fits else "eager"


def _is_differentiated_otherwise() -> bool:
    """Whether what is asked for is not one backward pass through a flash kernel, which knows nothing else."""
    if _is_transformed():
        return True
    return not torch.compiler.is_compiling() and not torch.backends.cuda.flash_sdp_enabled()


def _is_transformed() -> bool:
    """Whether a transform of torch.func or forward differentiation is under way, of whatever tensors."""
    if torch._C._are_functorch_transforms_active():
        return True
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def _counted(side: Tensor) -> int:
    """Entries (b, h, n, d) as the flash kernel's backward pass counts them, with all that it fills up."""
    samples, heads, points, width = side.shape
    return samples * (points + 256) * heads * (-(-width // 32) * 32)


def features_backend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, frequencies: Tensor | None = None
) -> str:
    """ "triton" or "short" for (b, h, n, d) points in bfloat16 on a CUDA device, else "eager".

    The kernels serve any strides in the first three axes, sides of the same b and h with widths that are
    powers of two from 16 to 64, and up to 128 frequencies of which no gradient is wanted, on GPUs since
    Ampere; where these have 99 KiB of shared memory (8.6, 8.9, 12.0), frequencies, filled up to a power of
    two, times d + e are 6,144 at most, and 8,192 on 10.0, which needs Triton 3.7. What is "short" serves
    everything else, also gradients of gradients where nothing is traced.

    Args:
        query: (b, h, n, d).
        key: (b, h, m, d).
        value: (b, h, m, e).
        mask: (b, 1, m) or (b, h, m).
        frequencies: (p, d), or None for elu + 1.

    Example:
        >>> x = torch.zeros(1, 1, 2, 16, dtype=torch.bfloat16)
        >>> features_backend(x, x, x, None)
        'eager'
    """
    if short_backend(query, key, value, mask) == "eager":
        return "eager"
    if _is_transformed():
        return "short"
    batch, heads = query.shape[:2]
    entries = 0
    fits = (
        key.dim() == 4
        and key.shape[:2] == (batch, heads)
        and value.shape[:-1] == key.shape[:-1]
        and all(size in SHORT_WIDTHS for size in (query.shape[-1], value.shape[-1]))
        and (mask is None or mask.shape in ((batch, 1, key.shape[2]), key.shape[:3]))
    )
    if frequencies is not None:
        plain = not frequencies.requires_grad and on_cuda(frequencies)
        fits = fits and plain and 0 < len(frequencies) <= WIDEST
        rows = max(16, 1 << (len(frequencies) - 1).bit_length())
        entries = rows * (query.shape[-1] + value.shape[-1])
    fits = fits and all(side.stride(2) < FARTHEST // WIDEST for side in (query, key, value))
    return "triton" if fits and HAS_TRITON and _holds(query.device, entries) else "short"


def _is_new(device: torch.device) -> bool:
    """Whether a GPU is of Ampere's kind or later."""
    return torch.cuda.get_device_properties(device).major >= FLASH


def _holds(device: torch.device, entries: int) -> bool:
    """Whether a GPU is of Ampere's kind or later and has shared memory for matrices of so many entries."""
    found = torch.cuda.get_device_properties(device)
    if found.major == BLACKWELL:
        return TRITON >= (3, 7) and entries <= LARGEST_SIDES
    ample = found.major == HOPPER or (found.major, found.minor) == (8, 0)
    return found.major >= FLASH and (ample or entries <= SCARCE)


def short_backend(points: Tensor, *others: Tensor | None) -> str:
    """ "short" for (b, h, n, d) points in bfloat16 on a CUDA device, else "eager".

    Example:
        >>> short_backend(torch.zeros(1, 1, 2, 4, dtype=torch.bfloat16))
        'eager'
    """
    sides = [points, *(side for side in others if side is not None)]
    fits = all(on_cuda(side) for side in sides) and points.dim() == 4 and points.numel() > 0
    same = {side.dtype for side in sides if side.is_floating_point()} == {torch.bfloat16}
    return "short" if fits and same else "eager"


def products_of(weight: Tensor) -> torch.dtype:
    """The precision of products with a weight: that of autocast where it is on, or its own.

    Example:
        >>> products_of(torch.zeros(2))
        torch.float32
    """
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def feed_forward_backend(x: Tensor, enter: Tensor) -> str:
    """ "triton" for points on a CUDA device with products in half precision, else "eager".

    The kernels serve widths that are powers of two from 16 to 128, outside and inside, if their product is at
    most 8,192.

    Example:
        >>> feed_forward_backend(torch.zeros(3, 16), torch.zeros(32, 16))
        'eager'
    """
    fits = (
        on_cuda(x)
        and x.numel() > 0
        and x.dtype in DTYPES
        and products_of(enter) in DTYPES[1:]
        and all(16 <= size <= WIDEST and size & (size - 1) == 0 for size in enter.shape)
        and enter.numel() <= LARGEST_LAYER
        and x.numel() // enter.shape[1] < FARTHEST
    )
    return "triton" if fits and HAS_TRITON else "eager"


def maps_backend(x: Tensor, maps: Sequence[tuple[Tensor, Tensor]]) -> str:
    """ "triton" for points on a CUDA device since Ampere with products in half precision, else "eager".

    The kernels serve up to three maps with weights of one shape, whose widths are powers of two from 16 to
    128 and whose entries are 12,288 at most together; plain tensors of one precision, or under autocast; and
    no transform of torch.func. Where a gradient is wanted, one of every weight and bias must be: for less
    they would keep too much.

    Args:
        x: points.
        maps: weight and bias of each.

    Example:
        >>> maps_backend(torch.zeros(3, 16), [(torch.zeros(32, 16), torch.zeros(32))])
        'eager'
    """
    if not (on_cuda(x) and x.numel() > 0 and 1 <= len(maps) <= MOST_MAPS and not _is_transformed()):
        return "eager"
    parts, weight = [part for each in maps for part in each], maps[0][0]
    trained = [part.requires_grad for part in parts]
    kept = torch.is_grad_enabled() and (x.requires_grad or any(trained))
    fits = (
        all(type(each) in PLAIN for each in (x, *parts))
        and all(on_cuda(part) and part.device == x.device and part.dtype == weight.dtype for part in parts)
        and all(each.shape == weight.shape for each, _ in maps)
        and x.dtype in DTYPES
        and (x.dtype == weight.dtype or torch.is_autocast_enabled(x.device.type))
        and products_of(weight) in DTYPES[1:]
        and all(16 <= size <= WIDEST and size & (size - 1) == 0 for size in weight.shape)
        and len(maps) * weight.numel() <= LARGEST_MAPS
        and (all(trained) or not kept)
    )
    return "triton" if fits and HAS_TRITON and _is_new(x.device) else "eager"


def lookup_backend(table: Tensor, tokens: Tensor) -> str:
    """ "triton" for tables of up to 1,024 rows on a CUDA device whose gradient is wanted, else "eager".

    Example:
        >>> lookup_backend(torch.zeros(3, 4), torch.tensor([0]))
        'eager'
    """
    fits = (
        on_cuda(table)
        and on_cuda(tokens)
        and tokens.numel() > 0
        and table.requires_grad
        and table.dtype in DTYPES
        and len(table) <= MOST_ROWS
        and table.shape[1] <= WIDEST
    )
    return "triton" if fits and HAS_TRITON else "eager"


def inverse_backend(matrix: Tensor) -> str:
    """ "triton" for matrices (... s s) in float32 on a CUDA device since Ampere, else "eager".

    The kernels serve up to 64 rows, and 32 on GPUs of 10.0, where Triton gives up on more.

    Example:
        >>> inverse_backend(torch.eye(3))
        'eager'
    """
    if _is_transformed():
        return "eager"
    fits = (
        on_cuda(matrix)
        and matrix.dtype == torch.float32
        and matrix.numel() > 0
        and matrix.shape[-1] <= LARGEST_INVERSE
    )
    if not (fits and HAS_TRITON):
        return "eager"
    major = torch.cuda.get_device_properties(matrix.device).major
    small = major != BLACKWELL or matrix.shape[-1] <= LARGEST_INVERSE // 2
    return "triton" if major >= FLASH and small else "eager"
