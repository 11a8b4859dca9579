"""Code that several models use: priors, noises, fields, and families of models with fast kernels."""
