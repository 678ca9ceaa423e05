"""Mimi, the streaming neural audio codec (Defossez et al. 2024, arXiv:2410.00037), in plain PyTorch."""
