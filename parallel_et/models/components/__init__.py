"""Parts that models share: priors, noises, fields, and whole means with the kernels that are fast for them."""
