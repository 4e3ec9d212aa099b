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
from kernelhead.inspection.plan import LayerPlan, Plan, plan, plan_record
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
    "HeadAlignment",
    "LayerPlan",
    "LayerSpectrum",
    "Plan",
    "Read",
    "Sides",
    "alignment",
    "brier_score",
    "calibration_error",
    "contaminate_keys",
    "drop_points",
    "effective_rank",
    "energy_rank",
    "fgsm",
    "host_sides",
    "kpca_record",
    "negative_log_likelihood",
    "pgd",
    "plan",
    "plan_record",
    "sides_of",
    "spectra",
    "spectrum_record",
    "spsa",
]
