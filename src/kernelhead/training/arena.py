"""What a run of long sequences is made from: its settings, the network they ask for, and its loss."""

from dataclasses import dataclass
from functools import partial
from math import inf, isqrt

from torch import Tensor, nn

from kernelhead.data import Tokens
from kernelhead.data.images import SIDE
from kernelhead.errors import BadInput
from kernelhead.models import SequenceClassifier
from kernelhead.shapes import check_size
from kernelhead.training.marked import Pixels, marked_loss
from kernelhead.training.resident import cross_entropy
from kernelhead.training.steps import Inputs, Loss
from kernelhead.training.views import moved, turned


@dataclass(frozen=True)
class Settings:
    """All that a run of this field is made from; see `SequenceClassifier` and `Course` for the words.

    On a GPU the loss is `compiled` or not; `cpu_precision` is that of runs without one. `landmarks` are ten
    times the rank where 0, `modes` as many as landmarks, `dilations` of `window` are those of one layer after
    another, over and over, joined by commas.

    `drawn` is how many training cases ListOps and Pathfinder have, 0 for those of the folder. Both may begin
    with `lessons` of drawn cases, of each the dashes of its contours or the most tokens of its lists, joined
    by commas, `lesson_steps` long; `lesson_cases` are drawn of each. Lessons of contours are the first of the
    `steps`. Those of lists come before them, each a course of its own on sequences as short as its lists, as
    many a batch as have `lesson_tokens` tokens together, or `batch` where that is 0.

    Of images alone, in training: `shift` is the most pixels that one is moved each way, `mirror` whether half
    are mirrored, `turn` whether they lie in any of the eight ways of a square. With `brightness` a pixel is a
    number and no token, embedded and then multiplied by `scale`, the root of the width where 0; a point is
    then a `square` of so many pixels each way.

    `marks` is the weight of a second loss: what is known of single tokens is to be told too, of Pathfinder's
    pixels how many dashes on a disc is, where the picture is drawn, and of ListOps what a list is worth so
    far (`listops_marks`). Nothing of it is left in the model.
    """

    attention: str = "softmax"
    width: int = 64
    depth: int = 2
    heads: int = 2
    inner: int = 128
    hidden: int = 128
    rank: int = 20
    dropout: float = 0.1
    steps: int = 5000
    warmup: float = 0.2
    batch: int = 32
    every: int = 250
    lr: float = 1e-4
    weight_decay: float = 0.0
    epsilon: float = 1e-6
    eta: float = 0.0
    precision: str = "bf16"
    cpu_precision: str = "32"
    schedule: str = "one_cycle"
    clip: float | None = None
    init: str = "published"
    compiled: bool = True
    drawn: int = 0
    landmarks: int = 0
    modes: int = 0
    window: int = 0
    dilations: str = "1"
    drop_path: float = 0.0
    smoothing: float = 0.0
    ema: float = 0.0
    position: str = "learned"
    patch: int = 1
    pooling: str = "mean"
    shift: int = 0
    mirror: bool = False
    turn: bool = False
    spread: float = 0.02
    brightness: bool = False
    scale: float = 0.0
    lessons: str = ""
    lesson_steps: int = 1000
    lesson_cases: int = 8000
    lesson_tokens: int = 0
    square: int = 1
    marks: float = 0.0

    def __post_init__(self) -> None:
        check_size("lra", "shift", self.shift, least=0)
        check_size("lra", "lesson_steps", self.lesson_steps)
        check_size("lra", "lesson_cases", self.lesson_cases)
        check_size("lra", "lesson_tokens", self.lesson_tokens, least=0)
        if not all(each.strip().isdecimal() and int(each) for each in self.dilations.split(",")):
            raise BadInput(f"lra: dilations are {self.dilations!r}, expected such as '1,4,16'")
        if SIDE % check_size("lra", "square", self.square) or (self.square > 1 and not self.brightness):
            raise BadInput(
                f"lra: square is {self.square}, brightness {self.brightness}; expected a divisor of {SIDE}, "
                "and pixels as numbers where it is not 1"
            )
        if not 0 <= self.marks < inf:
            raise BadInput(f"lra: marks is {self.marks}, expected a weight of 0 or more")

    def lesson_batch(self, longest: int) -> int:
        """Cases of a batch of lists with so many tokens at most."""
        return max(self.lesson_tokens // longest, 1) if self.lesson_tokens else self.batch

    def model(self, tokens: Tokens, *, padding: str = "masked") -> SequenceClassifier | Pixels:
        """The classifier for such tokens, with padding as there."""
        net = SequenceClassifier(
            len(tokens.classes),
            vocabulary=None if self.brightness else tokens.vocabulary,
            channels=self.square**2 if self.brightness else None,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            attention=self.attention,
            rank=self.rank,
            landmarks=self.landmarks or (64 if self.attention == "nystrom" else 10 * self.rank),
            modes=self.modes or None,
            inner=self.inner,
            hidden=self.hidden,
            position=self.position,
            pooling=self.pooling,
            longest=tokens.longest // self.square**2,
            dropout=self.dropout,
            init=self.init,
            window=self.window,
            dilations=[int(each) for each in self.dilations.split(",")],
            drop_path=self.drop_path,
            patch=self.patch,
            padding=padding,
            spread=self.spread,
            scale=self.scale or None,
        )
        if not self.brightness:
            return net
        return Pixels(net, float(tokens.x.mean()), float(tokens.x.std()), square=self.square)


def token_loss(settings: Settings, longest: int) -> Loss:
    """Cross-entropy of sequences as training shows them, those of images moved, mirrored and turned; and of
    their marks, where these are asked for.
    """
    side, changed = isqrt(longest), settings.shift or settings.mirror or settings.turn

    def show(values: Tensor) -> Tensor:
        """Values of pixels (b, c, n) where these come to lie."""
        if not changed:
            return values
        shown = values.unflatten(-1, (side, side))
        if settings.shift or settings.mirror:
            shown = moved(shown, shift=settings.shift, mirror=settings.mirror)
        if settings.turn:
            shown = turned(shown)
        return shown.flatten(2)

    if settings.marks:
        return marked_loss(settings.marks, show, smoothing=settings.smoothing)
    plain = partial(cross_entropy, smoothing=settings.smoothing)
    if not changed:
        return plain

    def loss(net: nn.Module, x: Inputs, targets: Tensor) -> Tensor:
        (tokens,) = x
        return plain(net, (show(tokens.unsqueeze(1)).squeeze(1),), targets)

    return loss
