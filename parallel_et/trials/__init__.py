"""Many runs of a job with other seeds or values of a key, and how well they recover known causes."""
