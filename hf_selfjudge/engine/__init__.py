"""Fast forwards: static caches, fused layers and CUDA graphs. Knows models, nothing of drafting, rules or judges."""
