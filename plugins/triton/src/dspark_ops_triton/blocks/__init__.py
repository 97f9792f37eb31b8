"""Device functions and launch helpers that several kernels share, the vendor plugins' included."""
