"""The keys of a job: what it may say, what it means, and a job to begin with."""
