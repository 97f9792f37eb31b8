"""Selection: discover, probe, evaluate, rank, plan. Pure functions over frozen values; nothing here imports torch."""
