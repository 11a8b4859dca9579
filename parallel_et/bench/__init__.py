"""What is measured: iterations beside one matrix product, and ways to write and read."""
