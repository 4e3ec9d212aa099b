"""The one training loop, its recipes, and the folders that runs leave behind."""

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
from kernelhead.training.runs import Trained, build, check_recipe, load_run, train_run

__all__ = [
    "Course",
    "Fitted",
    "Interrupted",
    "Recipe",
    "Trained",
    "Watcher",
    "accuracy_and_loss",
    "build",
    "check_recipe",
    "cross_entropy",
    "fit",
    "fit_resident",
    "is_main",
    "load_run",
    "make_fabric",
    "read_recipes",
    "recipe_from",
    "scores",
    "scores_of",
    "train_run",
]
