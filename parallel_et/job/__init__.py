"""The job file: its keys, their validation, and first jobs for new users."""
