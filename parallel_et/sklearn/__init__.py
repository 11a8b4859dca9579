"""Models of parallel_et as estimators of scikit-learn. Requires the extra: ``pip install "parallel_et[sklearn]"``."""

from parallel_et.sklearn.estimator import MultipleCauses

__all__ = ["MultipleCauses"]
