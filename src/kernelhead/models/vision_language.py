"""Pictures and words in one stream: a visual encoder of three kinds, a fusion, and what both learn from."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.errors import BadInput, unknown
from kernelhead.models.blocks import Block, Positions
from kernelhead.models.registry import Sizes, build_attention, layer_names
from kernelhead.nn import SoftmaxAttention
from kernelhead.nn.softmax import project
from kernelhead.ops.softmax import softmax_pattern
from kernelhead.shapes import check_size

ENCODERS = ("attention", "convolution", "none")
REGIONS = ("attention", "random", "none")
PAD, MASK = 0, 3  # in every vocabulary, with [CLS] and [SEP] between them


class ConvolutionBlock(nn.Module):
    """Neighbours mixed by a 3 by 3 convolution and a feed-forward, each with residual and layer norm.

    It has the parameters of a `Block` of softmax attention whose feed-forward is `inner` wide, up to half
    of those of one unit of its own feed-forward, which is narrower.

    Shapes: x (b, n, c), places of a grid row by row; returns the same.

    Args:
        width: features of a point.
        inner: middle width of the feed-forward of the attention block to match.
        grid: rows and columns.

    Raises:
        BadInput: nothing is left for the feed-forward.

    Example:
        >>> ConvolutionBlock(8, inner=32, grid=(2, 3))(torch.zeros(1, 6, 8)).shape
        torch.Size([1, 6, 8])
    """

    def __init__(self, width: int, *, inner: int, grid: tuple[int, int]) -> None:
        super().__init__()
        own = round(inner - (5 * width * width - 3 * width) / (2 * width + 1))
        if own < 1:
            raise BadInput(
                f"ConvolutionBlock: inner is {inner}, which leaves {own} for a feed-forward of width {width}"
            )
        self.grid, self.mix = grid, nn.Conv2d(width, width, 3, padding=1)
        self.mix_norm, self.forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, own), nn.GELU(), nn.Linear(own, width))

    def forward(self, x: Tensor) -> Tensor:
        """Mix neighbours, then feed forward."""
        cells = self.mix_norm(x).mT.unflatten(2, self.grid)  # (b, c, rows, columns)
        x = x + self.mix(cells).flatten(2).mT
        return x + self.feed_forward(self.forward_norm(x))


class VisionLanguageModel(nn.Module):
    """Words and patches of a picture in one Transformer, which tells whether they match.

    The picture goes through a visual encoder of its own first: self-attention, convolutions, or none. All
    three have equally many parameters and layers; without an encoder its layers are added to the fusion. The
    fusion reads [CLS], words, [SEP], padding and patches in this order.

    Shapes: image (b, channels, h, w), real, or bytes, which are taken as 0 to 1; words (b, m), whole numbers,
    0 padding, 1 [CLS], 2 [SEP], 3 [MASK]; returns (b,), the log-odds that the two match.

    Args:
        vocabulary: how many words there are, the special four included.
        channels: of a pixel.
        size: side of the square picture.
        patch: side of a patch; must divide `size`.
        longest: words of a caption, [CLS], [SEP] and padding included.
        width: of the model.
        heads: of each attention.
        encoder: "attention", "convolution" or "none".
        encoder_depth: layers of the visual encoder.
        depth: layers of the fusion, beside those that "none" adds.
        attention: of the fusion's layers; see `layer_names`.
        rank: of primal layers.
        landmarks: of primal and Nystrom layers.
        inner: middle width of feed-forwards, four times the width by default.

    Raises:
        BadInput: a size is out of range, or patches do not divide the picture.
        UnknownName: no such encoder or attention.

    Example:
        >>> model = VisionLanguageModel(9, channels=1, size=8, patch=4, longest=5, width=16, heads=2)
        >>> words = torch.tensor([[1, 4, 5, 2, 0], [1, 6, 7, 8, 2]])
        >>> model(torch.zeros(2, 1, 8, 8), words).shape
        torch.Size([2])
        >>> {name: group.sum(1).tolist() for name, group in model.groups(words).items()}
        {'words': [2, 3], 'image': [4, 4]}
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        channels: int,
        size: int,
        patch: int,
        longest: int,
        width: int = 64,
        heads: int = 4,
        encoder: str = "attention",
        encoder_depth: int = 2,
        depth: int = 2,
        attention: str = "softmax",
        rank: int = 16,
        landmarks: int = 32,
        inner: int | None = None,
    ) -> None:
        super().__init__()
        who = "VisionLanguageModel"
        given = {"channels": channels, "size": size, "patch": patch, "width": width}
        for name, number in (given | {"encoder_depth": encoder_depth, "depth": depth}).items():
            check_size(who, name, number)
        check_size(who, "vocabulary", vocabulary, least=MASK + 1)
        check_size(who, "longest", longest, least=2)
        if size % patch:
            raise BadInput(f"{who}: a picture of {size} by {size} does not split into patches of {patch}")
        if encoder not in ENCODERS:
            raise unknown(who, "encoder", encoder, ENCODERS)
        self.vocabulary, self.channels, self.size, self.patch = vocabulary, channels, size, patch
        self.longest, side, inner = longest, size // patch, inner or 4 * width
        self.patches = side * side
        self.patch_embedding = nn.Linear(channels * patch * patch, width)
        self.row = nn.Parameter(torch.empty(side, 1, width).normal_(std=0.5))
        self.column = nn.Parameter(torch.empty(1, side, width).normal_(std=0.5))
        self.encoder = nn.ModuleList(
            ConvolutionBlock(width, inner=inner, grid=(side, side))
            if encoder == "convolution"
            else Block(SoftmaxAttention(width, heads=heads), inner=inner)
            for _ in range(0 if encoder == "none" else encoder_depth)
        )
        self.visual_norm = nn.LayerNorm(width)
        self.word_embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.word_embedding.weight, std=0.02)
        self.positions = Positions(width, kind="learned", longest=longest)
        self.side = nn.Parameter(torch.empty(2, width).normal_(std=0.02))  # of words, of patches
        self.word_norm = nn.LayerNorm(width)
        total = depth + (encoder_depth if encoder == "none" else 0)
        sizes = Sizes(width, heads, rank, landmarks)
        self.fusion = nn.ModuleList(
            Block(build_attention(name, sizes), inner=inner) for name in layer_names(attention, total)
        )
        self.final_norm = nn.LayerNorm(width)
        self.hidden = nn.Parameter(torch.zeros(width))  # in the place of a masked patch
        self.matching, self.wording = nn.Linear(width, 1), nn.Linear(width, vocabulary)
        self.regression = nn.Linear(width, width)

    def forward(self, image: Tensor, words: Tensor) -> Tensor:
        """Log-odds that picture and words match."""
        return self.matched(self.fused(self.visual(image), words))

    def visual(self, image: Tensor) -> Tensor:
        """What the encoder makes of a picture's patches, (b, patches, width), normed.

        Raises:
            BadInput: the picture is of another size.
        """
        normed: Tensor = self.visual_norm(self._last_layer(image)[1])
        return normed

    def parsed(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and what the encoder's last layer attends to, mean over heads, (b, patches, patches).

        The pattern is that of softmax attention and has no gradient.

        Raises:
            BadInput: the encoder is no self-attention, or the picture is of another size.
        """
        block = self.encoder[-1] if len(self.encoder) else None
        attention = block.attention if isinstance(block, Block) else None
        if not isinstance(block, Block) or not isinstance(attention, SoftmaxAttention):
            raise BadInput("VisionLanguageModel: the visual encoder has no self-attention to read")
        given, x = self._last_layer(image)
        with torch.no_grad():
            query, key, _, _ = project(attention, block.attention_norm(given), None, None, None)
            pattern = softmax_pattern(query, key).mean(1)
        return self.visual_norm(x), pattern

    def fused(self, visual: Tensor, words: Tensor) -> Tensor:
        """All points after the fusion, (b, longest + patches, width), words first.

        Shapes: visual (b, patches, width), as `visual` gives it or changed; words (b, longest).

        Raises:
            BadInput: the words are of another length or kind.
        """
        if words.shape[1:] != (self.longest,) or words.is_floating_point():
            raise BadInput(
                f"VisionLanguageModel: `words` is {words.dtype} of shape {tuple(words.shape)}, "
                f"expected whole numbers (b, {self.longest})"
            )
        said = self.word_norm(self.positions(self.word_embedding(words)) + self.side[0])
        x = torch.cat([said, visual + self.side[1]], dim=1)
        mask = F.pad(words != PAD, (0, self.patches), value=True)
        for block in self.fusion:
            x = block(x, mask=mask)
        normed: Tensor = self.final_norm(x)
        return normed

    def matched(self, fused: Tensor) -> Tensor:
        """Log-odds that picture and words match, (b,), from all points after the fusion."""
        return self.matching(fused[:, 0]).squeeze(-1)

    def groups(self, words: Tensor) -> dict[str, Tensor]:
        """Which points of the fusion are words and which patches, (b, n) each; no special and padded ones."""
        said = F.pad(words > MASK, (0, self.patches))
        seen = F.pad(torch.zeros_like(words, dtype=torch.bool), (0, self.patches), value=True)
        return {"words": said, "image": seen}

    def _last_layer(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """What the last layer of the encoder takes and gives, (b, patches, width) both."""
        if image.shape[1:] != (self.channels, self.size, self.size):
            expected = f"(b, {self.channels}, {self.size}, {self.size})"
            raise BadInput(
                f"VisionLanguageModel: `image` has shape {tuple(image.shape)}, expected {expected}"
            )
        weight = self.patch_embedding.weight
        pixels = image.to(weight.dtype) / 255 if image.dtype == torch.uint8 else image
        cut = pixels.unflatten(3, (-1, self.patch)).unflatten(2, (-1, self.patch))
        x = self.patch_embedding(cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2))
        x = x + (self.row + self.column).flatten(0, 1)
        given = x
        for block in self.encoder:
            given, x = x, block(x)
        return given, x


class Losses(NamedTuple):
    """What a vision-language model learns from, scalars: their sum is the usual objective."""

    matching: Tensor
    wording: Tensor
    regression: Tensor


def vision_language_losses(
    model: VisionLanguageModel,
    image: Tensor,
    words: Tensor,
    matched: Tensor,
    *,
    rate: float = 0.15,
    regions: str = "attention",
    beside: int = 2,
) -> Losses:
    r"""Image-text matching, masked words, and masked feature regression.

    Words are hidden from matched pairs that show all patches, patches from matched pairs that show all words:
    a pivot, drawn at random, and those `beside` it that the encoder's own attention weighs highest for
    it, so that they cannot be copied from what is alike. Their features are to be told from all else,
    $\frac{1}{|M| c} \sum_{m \in M} \|g(h_m) - v_m\|^2$, and $v_m$ is taken as given. Draws are those of the
    device's global generator.

    Shapes: as `VisionLanguageModel`; matched (b,), 1 where picture and words belong together.

    Args:
        rate: share of words that are hidden; of those a tenth is shown as it is and a tenth as another word.
        regions: "attention"; "random", for patches of any encoder beside a pivot; or "none".
        beside: patches hidden with a pivot.

    Raises:
        BadInput: the rate is not between 0 and 1, or there are no patches beside so many.
        UnknownName: no such regions.

    Example:
        >>> model = VisionLanguageModel(9, channels=1, size=8, patch=4, longest=4, width=16, heads=2)
        >>> words = torch.tensor([[1, 4, 5, 2], [1, 6, 2, 0]])
        >>> made = vision_language_losses(model, torch.zeros(2, 1, 8, 8), words, torch.tensor([1, 0]))
        >>> made._fields, made.regression.dim()
        (('matching', 'wording', 'regression'), 0)
    """
    who = "vision_language_losses"
    if not 0 < rate < 1:
        raise BadInput(f"{who}: rate is {rate}, expected above 0 and below 1")
    if regions not in REGIONS:
        raise unknown(who, "regions", regions, REGIONS)
    if check_size(who, "beside", beside, least=0) >= model.patches:
        raise BadInput(f"{who}: beside is {beside}, expected fewer than the {model.patches} patches")
    looked = model.parsed(image) if regions == "attention" else None
    visual = model.visual(image) if looked is None else looked[0]
    shown, asked = hide_words(words, rate=rate, vocabulary=model.vocabulary)
    pictures, captions = [visual, visual], [words, shown]
    if regions != "none":
        weights = looked[1] if looked else torch.rand(len(visual), *[model.patches] * 2, device=visual.device)
        region = hide_regions(weights, beside=beside)
        pictures.append(torch.where(region[..., None], model.hidden.to(visual.dtype), visual))
        captions.append(words)
    plain, worded, *regressed = model.fused(torch.cat(pictures), torch.cat(captions)).chunk(len(pictures))
    true = matched.to(visual.dtype)
    matching = F.binary_cross_entropy_with_logits(model.matched(plain), true)
    scores = model.wording(worded[:, : model.longest])
    said = F.cross_entropy(scores.mT, words, reduction="none")
    wording = _mean_where(said, asked & (true > 0)[:, None])
    if not regressed:
        return Losses(matching, wording, matching.new_zeros(()))
    told = model.regression(regressed[0][:, model.longest :])
    wrong = (told - visual.detach()).square().mean(-1)
    return Losses(matching, wording, _mean_where(wrong, region & (true > 0)[:, None]))


def hide_words(words: Tensor, *, rate: float, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Words with a share hidden, and where: four fifths as [MASK], a tenth as any word, a tenth as it is.

    Special words are never hidden. Draws are those of the device's global generator.

    Shapes: words (b, m); returns (b, m) both.

    Args:
        rate: share of words that are hidden.
        vocabulary: how many words there are, the special ones included.

    Example:
        >>> shown, hidden = hide_words(torch.tensor([[1, 4, 2, 0]]), rate=0.5, vocabulary=9)
        >>> shown[0, [0, 2, 3]].tolist(), hidden[0, [0, 2, 3]].tolist()
        ([1, 2, 0], [False, False, False])
    """
    hidden = (torch.rand(words.shape, device=words.device) < rate) & (words > MASK)
    way = torch.rand(words.shape, device=words.device)
    other = torch.randint_like(words, MASK + 1, vocabulary) if vocabulary > MASK + 1 else words
    # No constant crosses to the device, so that a step can be a graph.
    changed = torch.where(way < 0.9, other, words).masked_fill(way < 0.8, MASK)
    return torch.where(hidden, changed, words), hidden


def hide_regions(pattern: Tensor, *, beside: int) -> Tensor:
    """Where a pivot lies, drawn for each case, and the `beside` points that it weighs highest.

    Draws are those of the device's global generator.

    Shapes: pattern (b, n, n); returns (b, n), True where hidden, beside + 1 times a row.

    Example:
        >>> hide_regions(torch.rand(3, 4, 4), beside=2).sum(1).tolist()
        [3, 3, 3]
    """
    cases, n, _ = pattern.shape
    pivot = torch.randint(n, (cases, 1), device=pattern.device)
    weights = pattern.gather(1, pivot[:, :, None].expand(-1, -1, n)).squeeze(1)
    # The pivot itself comes first, whatever it gives itself.
    chosen = weights.scatter(1, pivot, torch.inf).topk(beside + 1, dim=1).indices
    return torch.zeros_like(weights, dtype=torch.bool).scatter(1, chosen, True)


def _mean_where(values: Tensor, where: Tensor) -> Tensor:
    """The mean over what is chosen, zero where nothing is; shapes hang on no values."""
    return (values * where).sum() / where.sum().clamp_min(1)
