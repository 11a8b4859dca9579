"""What a trained model says of points: posteriors, recovered causes, and doubts about the model itself."""
