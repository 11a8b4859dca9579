"""Measurements: the time of an iteration relative to one matrix product, and of ways to write and read."""
