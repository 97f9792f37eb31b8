"""Change the lock file that holds a plan's choices. `dspark-ops plan` writes, checks and compares it."""
