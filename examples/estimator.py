"""Find the number of causes: a pipeline of scikit-learn, and a grid search by the evidence of held-out points."""

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from parallel_et.sklearn import MultipleCauses

rng = np.random.default_rng(1)
fields = rng.normal(size=(4, 16))  # four causes of 16 dimensions
points = (rng.random((1500, 4)) < 0.25) @ fields + 0.1 * rng.normal(size=(1500, 16))

causes = MultipleCauses("linca", options={"init": {"W": {"moments": "third"}}}, max_iter=50, random_state=1)
steps = make_pipeline(TruncatedSVD(8), causes)
search = GridSearchCV(steps, {"multiplecauses__n_components": [2, 3, 4, 5, 6]}, cv=3).fit(points)
for tried, evidence in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True):
    print(f"{tried['multiplecauses__n_components']} causes: {evidence:6.2f} nats per point")
print(f"best: {search.best_params_['multiplecauses__n_components']}")
print(search.best_estimator_[-1].result_)
