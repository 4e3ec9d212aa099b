"""Control: decision transformers on trajectories, held to unseen episodes and to their environment."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from kernelhead.data import Trajectories, normalised_score, read_trajectories, windows
from kernelhead.errors import BadInput, CheckpointError, missing_extra, unknown
from kernelhead.models import DecisionTransformer, action_loss
from kernelhead.rng import seeded
from kernelhead.training.grid import Job, Outcome
from kernelhead.training.ledger import digest
from kernelhead.training.resident import fit_resident, scores_of
from kernelhead.training.rollouts import ENVIRONMENTS, Environment, Rollout, make_environment, play
from kernelhead.training.settings import course_of, jobs_from, settings_from
from kernelhead.training.store import load_into, load_tensors, prepare_folder, save_tensors
from kernelhead.training.table import Goal, Page

VARIANTS = ("softmax", "primal+", "primal")
PROTOCOLS = ("clean", "returns")
SETS = tuple(f"{task}-{grade}" for task in ENVIRONMENTS for grade in ("medium", "expert", "mixed"))
NEEDED = ("gymnasium", "mujoco")  # by rollouts
ACTING = ("target", "episodes")  # settings that no weight depends on
AT_ONCE = 50  # episodes; a larger batch is no faster on a CPU
COSTS = ("steps_a_second", "peak_gib")  # figures of a machine, not of a policy


@dataclass(frozen=True)
class Settings:
    """All that a run of this field is made from; see `DecisionTransformer`, `Course` and `rollout`."""

    attention: str = "softmax"
    width: int = 256
    depth: int = 3
    heads: int = 4
    inner: int = 1024
    rank: int = 96
    context: int = 20
    longest: int = 1000
    dropout: float = 0.1
    steps: int = 100_000
    warmup: float = 0.1
    batch: int = 64
    lr: float = 1e-3
    weight_decay: float = 1e-4
    clip: float = 0.25
    eta: float = 0.0
    precision: str = "32"
    schedule: str = "constant"
    reduction: str = "sample"
    init: str = "published"
    scale: float = 1000.0
    target: float | None = None  # the best return of the training part
    episodes: int = 100

    def model(self, train: Trajectories) -> DecisionTransformer:
        """The policy for such trajectories, which takes observations less their mean, over their spread."""
        made = DecisionTransformer(
            train.observations.shape[1],
            train.actions.shape[1],
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            attention=self.attention,
            rank=self.rank,
            inner=self.inner,
            context=self.context,
            longest=self.longest,
            dropout=self.dropout,
            init=self.init,
        )
        made.standardise(*map(torch.from_numpy, train.moments()))
        return made


def rl_jobs(recipes: Path, *, protocol: str, seeds: int, root: Path | None = None) -> list[Job]:
    """The jobs of every set and variant in a recipe file.

    Args:
        recipes: TOML file; entries before the first table hold for all, those of [SET] for a set, and
            [SET.VARIANT] adds what a variant has of its own.
        protocol: "clean" for the actions of held-out episodes, "returns" for episodes in the environment.
        seeds: how many, from 0 on.
        root: folder of data sets; unused here, the data are read when a job runs.

    Raises:
        BadInput: the file is not such a file.
        MissingExtra: returns are asked for, and gymnasium or mujoco is not installed.
        UnknownName: no such protocol, set, variant or entry.
    """
    if protocol not in PROTOCOLS:
        raise unknown("rl", "protocol", protocol, PROTOCOLS)
    for package in NEEDED if protocol == "returns" else ():
        if find_spec(package) is None:
            raise missing_extra("rl, protocol returns", package, "rl")
    listed = jobs_from("rl", recipes, Settings, sets=SETS, protocol="clean", seeds=seeds, variants=VARIANTS)
    return [replace(job, protocol=protocol) for job in listed]


def rl_run(job: Job, *, root: Path | None = None, keep: Path | None = None) -> Outcome:
    """Train a policy for all its steps and hold it to unseen episodes; under "returns" let it act too.

    Nothing is chosen by a figure: the last weights are taken. `valid_loss` is the mean squared error of
    the actions of held-out episodes, `explained` the share of their variance in % that is not left in it,
    and `score` the mean normalised return of the episodes, with the return itself, their steps and the
    share that fell. `trained_elsewhere` is 1 where the policy was taken from a folder.

    Args:
        job: of this field.
        root: folder of data sets.
        keep: folder of trained policies; "clean" leaves one there, "returns" takes it or, where it is not
            there, trains.

    Raises:
        BadInput: the data are not here, or cannot be used; the policy was trained with other settings.
        CheckpointError: the policy cannot be read or written.
        MissingExtra: the protocol is "returns" and gymnasium is not installed.
    """
    settings = settings_from(Settings, job.key, job.recipe)
    acts = job.protocol == "returns"
    envs = [make_environment(job.data) for _ in range(min(settings.episodes, AT_ONCE) if acts else 0)]
    place = None if keep is None else _Place.of(keep, job, settings)
    kept = None if place is None else place.read()
    if keep is not None and not acts:
        prepare_folder(keep)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train = read_trajectories(job.data, split="train", root=root)
    with seeded(job.seed):
        model = settings.model(train).to(device)
    if place is not None and kept is not None and acts:
        load_into(place.path, model, kept.weights)
        figures = {**kept.figures, "trained_elsewhere": 1.0}
    else:
        valid = read_trajectories(job.data, split="validation", root=root)
        figures = _trained(model, train, valid, settings, seed=job.seed)
        if place is not None and not acts:
            place.write(model, figures)
    if acts:
        target = float(train.returns.max()) if settings.target is None else settings.target
        figures |= _returns(model, envs, job, settings, target)
    return Outcome(figures, sum(each.numel() for each in model.parameters()))


def _trained(
    model: DecisionTransformer, train: Trajectories, valid: Trajectories, settings: Settings, *, seed: int
) -> dict[str, float]:
    """Train a policy where it lies, and say how it went."""
    device = model.mean.device
    course = course_of(settings, seed, device)
    steps, actions = _on(train, settings, device)
    fitted = fit_resident(model, steps, actions, course, loss=action_loss)
    return {
        **_held_out(model, *_on(valid, settings, device), precision=course.precision),
        "train_loss": fmean(fitted.losses[-100:]),
        "steps_a_second": fitted.steps_a_second,
        "peak_gib": fitted.peak_gib,
        "train_episodes": float(len(train)),
    }


@dataclass(frozen=True)
class _Kept:
    """A policy from a folder, with the figures of its training."""

    weights: dict[str, Tensor]
    figures: dict[str, float]


@dataclass(frozen=True)
class _Place:
    """The file of a policy, and all that decides its weights."""

    path: Path
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, folder: Path, job: Job, settings: Settings) -> "_Place":
        """The place of a job's policy, named in letters that every system takes."""
        name = f"{job.data}.{job.variant.replace('+', '-plus')}.{job.seed}.safetensors"
        deciding = {entry: value for entry, value in asdict(settings).items() if entry not in ACTING}
        return cls(folder / name, {"data": job.data, "variant": job.variant, "seed": job.seed, **deciding})

    def read(self) -> _Kept | None:
        """The policy that lies there, if one does."""
        if not self.path.exists():
            return None
        weights, facts = load_tensors(self.path)
        if not {"settings", "figures"} <= facts.keys():
            raise CheckpointError(f"{self.path} is not a policy: it holds no settings and figures")
        there, here = facts["settings"], self.settings
        differ = sorted(name for name in there.keys() | here.keys() if there.get(name) != here.get(name))
        if differ:
            changes = ", ".join(f"{name} {there.get(name)!r} -> {here.get(name)!r}" for name in differ)
            raise BadInput(f"{self.path} holds a policy of other settings ({changes}); take another folder")
        return _Kept(weights, facts["figures"])

    def write(self, model: DecisionTransformer, figures: Mapping[str, float]) -> None:
        """Leave a policy there."""
        weights = {name: tensor.float() for name, tensor in model.state_dict().items()}
        about = {name: value for name, value in figures.items() if name not in COSTS}
        facts = {"settings": self.settings, "digest": digest(self.settings), "figures": about}
        save_tensors(self.path, weights, facts)


def _on(
    trajectories: Trajectories, settings: Settings, device: torch.device
) -> tuple[tuple[Tensor, ...], Tensor]:
    """A window from every step, in the order in which the model takes its parts, and the actions again."""
    drawn = windows(trajectories, settings.context, scale=settings.scale)
    parts = tuple(torch.from_numpy(part).to(device) for part in drawn.parts())
    return parts, parts[2]


def _held_out(
    model: DecisionTransformer, steps: tuple[Tensor, ...], actions: Tensor, *, precision: str
) -> dict[str, float]:
    *_, mask = steps
    made, right = scores_of(model, steps, precision=precision)[mask], actions[mask]  # (real steps, a)
    loss, spread = (made - right).square().mean(), right.var(0, correction=0).mean()
    return {"valid_loss": float(loss), "explained": 100 * float(1 - loss / spread)}


def _returns(
    model: DecisionTransformer, envs: Sequence[Environment], job: Job, settings: Settings, target: float
) -> dict[str, float]:
    """Episodes that start alike for all variants, and differently under each seed."""
    done: list[Rollout] = []
    for number in range(0, settings.episodes, AT_ONCE):
        seed, left = job.seed * settings.episodes + number, settings.episodes - number
        done += play(model, envs[:left], target=target, scale=settings.scale, seed=seed)
    return {
        "score": fmean(normalised_score(job.data, each.total) for each in done),
        "return": fmean(each.total for each in done),
        "episode_steps": fmean(each.steps for each in done),
        "fell": fmean(each.fell for each in done),
    }


RL_PAGE = Page(
    title="Control by decision transformers",
    about=(
        "Mean ± deviation over seeds, with the number of seeds. Three layers of width 256 and four heads on "
        "windows of 20 steps, the published recipe (AdamW, a rise to a constant learning rate, gradients "
        "clipped at 0.25) for 10,000 steps of training; the last weights are taken. Primal layers are causal "
        "and their weights do not depend on the data. The trajectories were collected anew and are **not "
        "D4RL**: they come from other policies and are fewer, so the published table of returns says nothing "
        "about these figures and is not shown beside them. What can be compared are the columns."
    ),
    figures={"clean": "explained", "returns": "score"},
    labels={
        "clean": "How much of the variance of the actions in held-out episodes is predicted, in %. It needs "
        "no environment, chooses nothing, and is not a return.",
        "returns": "Normalised return of episodes in the environment: 0 is a random policy, 100 an expert.",
    },
    variants={"softmax": "softmax Transformer", "primal+": "Primal.+", "primal": "PrimalFormer"},
    goals=tuple(Goal(name, "softmax") for name in ("primal+", "primal")),
)
