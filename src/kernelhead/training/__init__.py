"""The one training loop, its recipes, the folders that runs leave behind, and grids of jobs."""

from kernelhead.training.course import Course
from kernelhead.training.depth import Optimum, best_depths
from kernelhead.training.distil import Distilled, distil
from kernelhead.training.event_runs import (
    EventOptions,
    EventRecipe,
    TrainedEvents,
    event_recipe_from,
    fit_events,
    is_event_run,
    load_event_run,
    train_event_run,
)
from kernelhead.training.fields import FIELDS, Field, jobs_of, reproduce, standing
from kernelhead.training.grid import Job, Outcome, run_jobs, select
from kernelhead.training.landmarks import LandmarkRidge
from kernelhead.training.ledger import Ledger
from kernelhead.training.loop import (
    Interrupted,
    Watcher,
    accuracy_and_loss,
    fit,
    is_main,
    make_fabric,
    scores,
)
from kernelhead.training.masked import Masked, MaskedEntries, Masking, annealed, mask_entries, masked_loss
from kernelhead.training.questions import Questions
from kernelhead.training.recipe import Recipe, read_recipes, recipe_from
from kernelhead.training.regimes import regime_panels
from kernelhead.training.reranking import (
    Lists,
    contrastive_loss,
    fit_reranker,
    list_loss,
    lists_of,
    reconstruction_loss,
)
from kernelhead.training.resident import cross_entropy, fit_resident, scores_of
from kernelhead.training.rollouts import Environment, Rollout, make_environment, play, rollout
from kernelhead.training.runs import Trained, build, check_recipe, load_run, train_run
from kernelhead.training.steps import Fitted
from kernelhead.training.table import Claim, Goal, Page, markdown
from kernelhead.training.tables import FittedTable, TableSettings, best_temperature, fit_table
from kernelhead.training.transport_maps import FittedMap, MapSettings, fit_map, matched_dummies, pretrain_head

__all__ = [
    "FIELDS",
    "Claim",
    "Course",
    "Distilled",
    "Environment",
    "EventOptions",
    "EventRecipe",
    "Field",
    "Fitted",
    "FittedMap",
    "FittedTable",
    "Goal",
    "Interrupted",
    "Job",
    "LandmarkRidge",
    "Ledger",
    "Lists",
    "MapSettings",
    "Masked",
    "MaskedEntries",
    "Masking",
    "Optimum",
    "Outcome",
    "Page",
    "Questions",
    "Recipe",
    "Rollout",
    "TableSettings",
    "Trained",
    "TrainedEvents",
    "Watcher",
    "accuracy_and_loss",
    "annealed",
    "best_depths",
    "best_temperature",
    "build",
    "check_recipe",
    "contrastive_loss",
    "cross_entropy",
    "distil",
    "event_recipe_from",
    "fit",
    "fit_events",
    "fit_map",
    "fit_reranker",
    "fit_resident",
    "fit_table",
    "is_event_run",
    "is_main",
    "jobs_of",
    "list_loss",
    "lists_of",
    "load_event_run",
    "load_run",
    "make_environment",
    "make_fabric",
    "markdown",
    "mask_entries",
    "masked_loss",
    "matched_dummies",
    "play",
    "pretrain_head",
    "read_recipes",
    "recipe_from",
    "reconstruction_loss",
    "regime_panels",
    "reproduce",
    "rollout",
    "run_jobs",
    "scores",
    "scores_of",
    "select",
    "standing",
    "train_event_run",
    "train_run",
]
