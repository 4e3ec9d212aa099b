"""Read: spectrum, alignment, flow, coupling, graph."""

from kernelhead.inspection.alignment import (
    Alignment,
    HeadAlignment,
    Read,
    Sides,
    alignment,
    host_sides,
    kpca_record,
    sides_of,
)
from kernelhead.inspection.attacks import contaminate_keys, drop_points, fgsm, pgd, spsa
from kernelhead.inspection.calibration import brier_score, calibration_error, negative_log_likelihood
from kernelhead.inspection.costs import Cost
from kernelhead.inspection.datapoints import (
    Deletion,
    Neighbours,
    Reliance,
    corruption_reliance,
    delete_until_change,
    neighbours,
)
from kernelhead.inspection.plan import LayerPlan, Plan, plan, plan_record
from kernelhead.inspection.ranking import mean_average_precision, precision_at
from kernelhead.inspection.spectrum import (
    LayerSpectrum,
    effective_rank,
    energy_rank,
    spectra,
    spectrum_record,
)

__all__ = [
    "Alignment",
    "Cost",
    "Deletion",
    "HeadAlignment",
    "LayerPlan",
    "LayerSpectrum",
    "Neighbours",
    "Plan",
    "Read",
    "Reliance",
    "Sides",
    "alignment",
    "brier_score",
    "calibration_error",
    "contaminate_keys",
    "corruption_reliance",
    "delete_until_change",
    "drop_points",
    "effective_rank",
    "energy_rank",
    "fgsm",
    "host_sides",
    "kpca_record",
    "mean_average_precision",
    "negative_log_likelihood",
    "neighbours",
    "pgd",
    "plan",
    "plan_record",
    "precision_at",
    "sides_of",
    "spectra",
    "spectrum_record",
    "spsa",
]
