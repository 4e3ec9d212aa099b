"""The definitions in plain PyTorch."""
