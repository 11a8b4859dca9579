"""Images and sounds on their way to data points."""
