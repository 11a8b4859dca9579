"""The contract between engine, models and schemes, and the EM loop; knows no model, no scheme and no file format."""
