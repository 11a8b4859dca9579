"""The EM algorithm: its loop, the E-step over blocks, the M-step, and the schedules of a run."""
