"""An estimator of scikit-learn for every model."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import ValidationError
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data

from parallel_et.core.capabilities import decode
from parallel_et.core.model import EnumeratingView, Model
from parallel_et.core.options import keys_of
from parallel_et.core.types import Choosy
from parallel_et.errors import UserError
from parallel_et.models import MODELS
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.api import fit
from parallel_et.runs.online_batches import learn_batch

KINDS = (np.float64, np.float32)
FEW, ACTIVE = 8, 3
"""Where nothing is said of inference: causes up to which all states are considered; of more so many are candidates, and
so many of these active at most."""


class MultipleCauses(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Causes that explain points together, learned by expectation truncation, and the posterior of each point.

    Parameters
    ----------
    model : one of parallel_et's models, such as "linca", "nmf", "mca" or "gmm"
    n_components : number of causes, or of clusters
    options : further keys of [model], as a dict
    inference : the keys of [inference]; by default all states of up to 8 causes are considered, of more candidates
    anneal : the keys of [anneal] besides iterations
    max_iter : iterations
    centre : subtract from each feature its mean
    binarize : make points of zeros and ones, as noisyor has them: one where a value is above this
    random_state : seed, generator or None
    comm : mpi4py communicator whose ranks all call with the same data; by default this process alone

    Attributes
    ----------
    components_ : (n_components, n_features) the generative fields
    result_ : Trained, with all that was learned and its history
    n_iter_ : iterations that were done
    """

    def __init__(
        self,
        model: str = "linca",
        n_components: int = 4,
        *,
        options: Mapping[str, Any] | None = None,
        inference: Mapping[str, Any] | None = None,
        anneal: Mapping[str, Any] | None = None,
        max_iter: int = 100,
        centre: bool = False,
        binarize: float | None = None,
        random_state: Any = None,
        comm: Any = None,
    ) -> None:
        self.model = model
        self.n_components = n_components
        self.options = options
        self.inference = inference
        self.anneal = anneal
        self.max_iter = max_iter
        self.centre = centre
        self.binarize = binarize
        self.random_state = random_state
        self.comm = comm

    def job(self) -> dict[str, Any]:
        """The job, without data."""
        seed = int(check_random_state(self.random_state).randint(2**31))
        model = self._model
        few = self.n_components <= FEW or (model is not None and model.latents.most == 1)
        usual: dict[str, Any] = {"scheme": "exact"} if few else {"candidates": FEW, "gamma": ACTIVE}
        if model is not None and not issubclass(model.View, EnumeratingView):
            usual = {"scheme": "sample", **({"candidates": FEW} if self.n_components > FEW else {})}
        return {
            "model": {"name": self.model, "causes": self.n_components, **(self.options or {})},
            "data": {"centre": self.centre},
            "inference": usual if self.inference is None else dict(self.inference),
            "anneal": {"iterations": self.max_iter, **(self.anneal or {})},
            "run": {"seed": seed},
        }

    def fit(self, X: Any, y: Any = None) -> "MultipleCauses":
        """Learn from points X (n, features)."""
        X = self._seen(X, reset=True)
        try:
            self.result_ = fit(self.job(), X, comm=self._comm)
        except UserError as error:
            raise ValueError(str(error)) from None
        return self._learned()

    def partial_fit(self, X: Any, y: Any = None) -> "MultipleCauses":
        """One M-step of the points X (n, features), with statistics averaged over all calls; goes on from ``fit``."""
        before = getattr(self, "result_", None)
        X = self._seen(X, reset=before is None)
        try:
            self.result_ = learn_batch(self.job(), X, self._comm, before)
        except UserError as error:
            raise ValueError(str(error)) from None
        return self._learned()

    def _learned(self) -> "MultipleCauses":
        self.components_ = self.result_.W.T
        self.n_iter_ = int(self.result_.about["iteration"])
        return self

    @property
    def _comm(self) -> Any:
        return Ranks.alone().comm if self.comm is None else self.comm

    def transform(self, X: Any) -> np.ndarray:
        """Posterior means of the causes, (n, n_components)."""
        return self._made("transform", X)

    def score_samples(self, X: Any) -> np.ndarray:
        """Log probability densities of points, or lower bounds, (n,); of ssmca the mean log joint of what is drawn."""
        return self._made("evidence", X)

    def score(self, X: Any, y: Any = None) -> float:
        """Their mean."""
        return float(self.score_samples(X).mean())

    def reconstruct(self, X: Any) -> np.ndarray:
        """Points without their noise, (n, n_features): the expected mean under the posterior."""
        return self._made("reconstruct", X)

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Points without noise, (n, n_features), of causes of the probabilities X, or of the strengths X."""
        check_is_fitted(self)
        result = self.result_
        points = decode(result.model, result.params, np.asarray(X, np.float64))
        return points + result.data["mean"] if self.centre else points

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Points drawn from the model, and which of the causes are active in each."""
        check_is_fitted(self)
        return self.result_.generate(n_samples, int(check_random_state(self.random_state).randint(2**31)))

    def _made(self, what: str, X: Any) -> np.ndarray:
        """What the trained model makes of points."""
        check_is_fitted(self)
        X = self._seen(X, reset=False)
        try:
            return getattr(self.result_, what)(X, self.comm)
        except UserError as error:
            raise ValueError(str(error)) from None

    def _seen(self, X: Any, reset: bool) -> np.ndarray:
        """Points as the model takes them, if they are such."""
        X = validate_data(self, X, dtype=KINDS, reset=reset)
        if self.binarize is not None:
            X = (self.binarize < X).astype(X.dtype)
        if self._counts:
            check_non_negative(X, "MultipleCauses")
        return X

    @property
    def _model(self) -> Model | None:
        """The model of points of one dimension; None if its keys are wrong, which ``fit`` reports."""
        try:
            kind = MODELS.find(self.model)
            return kind(keys_of(kind)(name=self.model, causes=self.n_components, **(self.options or {})), 1)
        except (KeyError, UserError, ValidationError):
            return None

    @property
    def _counts(self) -> bool:
        """Whether points are counts, or the like."""
        model = self._model
        return model is not None and isinstance(model.noise, Choosy)

    @property
    def _n_features_out(self) -> int:
        return self.result_.model.latents.atoms

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = self._counts and self.binarize is None
        return tags
