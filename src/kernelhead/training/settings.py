"""Recipe files of fields: entries for all, for a set and for a variant, as jobs with checked settings."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch

from kernelhead.data import folder_of
from kernelhead.errors import BadInput, KernelheadError, unknown
from kernelhead.training.course import Course
from kernelhead.training.grid import Job
from kernelhead.training.recipe import checked_entries, parted, read_toml

PROTOCOLS = ("clean",)
ELSEWHERE = "; by default it is recipes/FIELD.toml of a checkout, --recipe names another"
Kind = TypeVar("Kind")


def settings_from(kind: type[Kind], who: str, recipe: Mapping[str, Any]) -> Kind:
    """A dataclass of settings from a table.

    Args:
        kind: the dataclass; every entry has a default.
        who: what the table is called in a complaint.
        recipe: its entries.

    Raises:
        UnknownName: an entry that the dataclass does not have.
        BadInput: an entry of the wrong type.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Size:
        ...     width: int = 8
        >>> settings_from(Size, "mine.toml", {"width": 16}).width
        16
    """
    return kind(**checked_entries(kind, recipe, who))


def course_of(settings: Any, seed: int, device: torch.device) -> Course:
    """How settings are trained: all of a course's fields that they have.

    Without a GPU in their `cpu_precision`, float32 where they have none.
    """
    given = {
        field.name: getattr(settings, field.name) for field in fields(Course) if hasattr(settings, field.name)
    }
    on_cpu = getattr(settings, "cpu_precision", "32")
    precision = settings.precision if device.type == "cuda" else on_cpu
    return Course(**{**given, "precision": precision, "seed": seed})


def jobs_from(
    field: str,
    recipes: Path,
    kind: type[Any],
    *,
    sets: Collection[str],
    protocol: str,
    seeds: int,
    variants: Collection[str] | None = None,
    folders: Mapping[str, str] | None = None,
    root: Path | None = None,
    protocols: Collection[str] = PROTOCOLS,
) -> list[Job]:
    """The jobs of every set and variant in a recipe file; the variant's name is its attention.

    Args:
        field: whose jobs they are.
        recipes: TOML file; entries before the first table hold for all, those of [SET] for a set, and
            [SET.VARIANT] adds what a variant has of its own.
        kind: dataclass of the settings.
        sets: known data sets.
        protocol: one of `protocols`; "clean": a validation part chooses the weights.
        seeds: how many, from 0 on.
        variants: known variants, whose names are then taken for the attention; any name if left out.
        folders: further sets, which users bring along, and their folders; listed where these are there.
        root: folder of data sets; see `folder_of`.
        protocols: those that the field has.

    Raises:
        BadInput: the file is not such a file.
        UnknownName: no such protocol, set, variant or entry.
    """
    if protocol not in protocols:
        raise unknown(field, "protocol", protocol, protocols)
    folders, jobs = folders or {}, []
    for (data, variant), recipe in _tables(recipes).items():
        if data not in sets and data not in folders:
            raise unknown(str(recipes), "set", data, [*sets, *folders])
        who = f"{recipes}, [{data}.{variant}]"
        if variants is not None:
            if variant not in variants:
                raise unknown(who, "variant", variant, variants)
            recipe = {"attention": variant, **recipe}
        _check_course(settings_from(kind, who, recipe), who)
        if data in folders and folder_of(folders[data], root) is None:
            continue
        jobs += [Job(field, data, variant, protocol, seed, recipe) for seed in range(seeds)]
    return jobs


def _check_course(settings: Any, who: str) -> None:
    """Refuse what no course can be made of, with a GPU and without, before a job runs.

    Raises:
        BadInput: there is no such course.
    """
    if not all(hasattr(settings, name) for name in ("steps", "batch", "precision")):
        return
    for device in ("cpu", "cuda"):
        try:
            course_of(settings, 0, torch.device(device))
        except KernelheadError as error:
            raise BadInput(f"{who}: {error}") from None


def _tables(recipes: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The table of every set and variant, with what it shares."""
    shared, sets = parted(read_toml(recipes, ELSEWHERE))
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for data, table in sets.items():
        own, variants = parted(table)
        found |= {(data, name): {**shared, **own, **entries} for name, entries in variants.items()}
    return found
