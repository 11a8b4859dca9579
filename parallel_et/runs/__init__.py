"""A run from its job to its result: what is checked, kept, continued, inferred and counted."""
