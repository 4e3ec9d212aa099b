"""The same ops as kernels for the GPU; only this folder imports triton."""
