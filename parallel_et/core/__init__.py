"""The contract between engine, models and schemes, and the EM loop. It depends on no model, scheme or file format."""
