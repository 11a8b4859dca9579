"""What a report is made of: what is known of a run, pictures of it, and the page."""
