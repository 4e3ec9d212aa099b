"""The one training loop, its recipes, the folders that runs leave behind, and grids of jobs."""

from kernelhead.training.distil import Distilled, distil
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
from kernelhead.training.recipe import Recipe, read_recipes, recipe_from
from kernelhead.training.resident import Course, Fitted, cross_entropy, fit_resident, scores_of
from kernelhead.training.rollouts import Environment, Rollout, make_environment, play, rollout
from kernelhead.training.runs import Trained, build, check_recipe, load_run, train_run
from kernelhead.training.table import Claim, Goal, Page, markdown

__all__ = [
    "FIELDS",
    "Claim",
    "Course",
    "Distilled",
    "Environment",
    "Field",
    "Fitted",
    "Goal",
    "Interrupted",
    "Job",
    "LandmarkRidge",
    "Ledger",
    "Outcome",
    "Page",
    "Recipe",
    "Rollout",
    "Trained",
    "Watcher",
    "accuracy_and_loss",
    "build",
    "check_recipe",
    "cross_entropy",
    "distil",
    "fit",
    "fit_resident",
    "is_main",
    "jobs_of",
    "load_run",
    "make_environment",
    "make_fabric",
    "markdown",
    "play",
    "read_recipes",
    "recipe_from",
    "reproduce",
    "rollout",
    "run_jobs",
    "scores",
    "scores_of",
    "select",
    "standing",
    "train_run",
]
