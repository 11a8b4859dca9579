"""Control of any long work: signals, requests to stop, progress, and resources of the process."""
