"""Reports about runs: data of a run, pictures, and the HTML page."""
