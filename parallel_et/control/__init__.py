"""How long work is watched over: signals, when to stop, what is told of it; knows nothing of what is done."""
