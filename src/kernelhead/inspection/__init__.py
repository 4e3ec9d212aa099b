"""Read: spectrum, flow, coupling, graph."""

from kernelhead.inspection.spectrum import (
    LayerSpectrum,
    effective_rank,
    energy_rank,
    spectra,
    spectrum_record,
)

__all__ = ["LayerSpectrum", "effective_rank", "energy_rank", "spectra", "spectrum_record"]
