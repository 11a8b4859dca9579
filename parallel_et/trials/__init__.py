"""Many runs of a job with other seeds or values of a key, and their recovery of known causes."""
