"""What schemes share: how candidates are selected."""
