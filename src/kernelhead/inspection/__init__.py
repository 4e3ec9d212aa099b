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
from kernelhead.inspection.causal import attention_graph, graph_baselines, skeleton_f1
from kernelhead.inspection.circuits import (
    Agreement,
    Circuits,
    PositionalTerms,
    asymmetry_index,
    circuit_record,
    compare_kernels,
    positional_terms,
    read_circuits,
    unembedding,
)
from kernelhead.inspection.costs import Cost
from kernelhead.inspection.couplings import (
    bures_difficulty,
    bures_distance,
    optimal_coupling,
    optimal_matching,
    wasserstein,
)
from kernelhead.inspection.datapoints import (
    Deletion,
    Neighbours,
    Reliance,
    corruption_reliance,
    delete_until_change,
    neighbours,
)
from kernelhead.inspection.explanations import Explanation, explanation_baselines, minimal_explanation
from kernelhead.inspection.flow import (
    Flow,
    flow_record,
    inter_modality_flow,
    model_flow,
    named_groups,
)
from kernelhead.inspection.graphs import AncestralGraph
from kernelhead.inspection.head_graphs import (
    HeadGraph,
    HeadPatterns,
    busiest_points,
    graph_record,
    head_graphs,
    head_patterns,
)
from kernelhead.inspection.independence import PartialCorrelations, attention_correlation
from kernelhead.inspection.maps import LayerMap, attention_maps, map_record
from kernelhead.inspection.moves import TransportFigures
from kernelhead.inspection.plan import LayerPlan, Plan, plan, plan_record
from kernelhead.inspection.ranking import mean_average_precision, precision_at
from kernelhead.inspection.rollout import attention_rollout
from kernelhead.inspection.separation import (
    SeparationRank,
    SeparationReading,
    SeparationSpectrum,
    separation_rank,
    separation_record,
    separation_spectrum,
)
from kernelhead.inspection.spectrum import (
    LayerSpectrum,
    effective_rank,
    energy_rank,
    spectra,
    spectrum_record,
)
from kernelhead.inspection.trajectories import TrajectoryRecorder
from kernelhead.inspection.transport import (
    TransportReport,
    monge_gap,
    transport_record,
    transport_report,
    transport_trace,
)

__all__ = [
    "Agreement",
    "Alignment",
    "AncestralGraph",
    "Circuits",
    "Cost",
    "Deletion",
    "Explanation",
    "Flow",
    "HeadAlignment",
    "HeadGraph",
    "HeadPatterns",
    "LayerMap",
    "LayerPlan",
    "LayerSpectrum",
    "Neighbours",
    "PartialCorrelations",
    "Plan",
    "PositionalTerms",
    "Read",
    "Reliance",
    "SeparationRank",
    "SeparationReading",
    "SeparationSpectrum",
    "Sides",
    "TrajectoryRecorder",
    "TransportFigures",
    "TransportReport",
    "alignment",
    "asymmetry_index",
    "attention_correlation",
    "attention_graph",
    "attention_maps",
    "attention_rollout",
    "brier_score",
    "bures_difficulty",
    "bures_distance",
    "busiest_points",
    "calibration_error",
    "circuit_record",
    "compare_kernels",
    "contaminate_keys",
    "corruption_reliance",
    "delete_until_change",
    "drop_points",
    "effective_rank",
    "energy_rank",
    "explanation_baselines",
    "fgsm",
    "flow_record",
    "graph_baselines",
    "graph_record",
    "head_graphs",
    "head_patterns",
    "host_sides",
    "inter_modality_flow",
    "kpca_record",
    "map_record",
    "mean_average_precision",
    "minimal_explanation",
    "model_flow",
    "monge_gap",
    "named_groups",
    "negative_log_likelihood",
    "neighbours",
    "optimal_coupling",
    "optimal_matching",
    "pgd",
    "plan",
    "plan_record",
    "positional_terms",
    "precision_at",
    "read_circuits",
    "separation_rank",
    "separation_record",
    "separation_spectrum",
    "sides_of",
    "skeleton_f1",
    "spectra",
    "spectrum_record",
    "spsa",
    "transport_record",
    "transport_report",
    "transport_trace",
    "unembedding",
    "wasserstein",
]
