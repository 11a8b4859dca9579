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
from parallel_et.core.options import options_class
from parallel_et.core.types import RestrictsData
from parallel_et.errors import UserError
from parallel_et.models import MODELS
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.api import fit
from parallel_et.runs.online_batches import train_on_batch

DTYPES = (np.float64, np.float32)
EXACT_CAUSES = 8
"""Number of causes up to which all states are considered by default."""
CANDIDATES = 8
"""Default number of candidates for more causes."""
GAMMA = 3
"""Default maximum number of candidates that are active at once."""


class MultipleCauses(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Multiple-cause models such as sparse coding, non-negative matrix factorisation and mixtures, trained by EM.

    Each sample is produced by a few of ``n_components`` hidden causes.
    A state is the set of causes that are active in a sample, and the field of a cause contains its generative weights.
    The method ``fit`` learns the fields by expectation truncation: EM with an E-step over the most probable states.
    The method ``transform`` returns the posterior means of the causes.

    Parameters
    ----------
    model : str, default "linca"
        Name of the model, e.g. "linca" (binary sparse coding), "gsc" (spike-and-slab sparse coding), "nmf", "mca"
        (maximal causes) or "gmm" (Gaussian mixture). ``parallel_et.models.MODELS.names()`` lists all.
    n_components : int, default 4
        Number of causes H, or of clusters of a mixture.
    options : dict, optional
        Further keys of the section [model] of a job, e.g. ``{"noise": "poisson"}``.
    inference : dict, optional
        Keys of the section [inference]. By default all states of up to 8 causes are considered. For more causes,
        the states have at most 3 active causes out of 8 candidates, which are preselected for each sample.
    anneal : dict, optional
        Keys of the section [anneal], such as schedules of the temperature. The iterations follow from ``max_iter``.
    max_iter : int, default 100
        Number of EM iterations.
    centre : bool, default False
        Subtract the mean of each feature before training and inference.
    binarize : float, optional
        Threshold for binary models such as "noisyor": features above it become 1, all others 0.
    random_state : int, RandomState or None, default None
        Seed of initialisation, training and ``sample``.
    comm : mpi4py communicator, optional
        The ranks that share the work. All of them call each method together, with the same data. Default: this
        process alone.

    Attributes
    ----------
    components_ : array of shape (n_components, n_features)
        Generative fields of the causes.
    result_ : Trained
        All learned parameters, the history of the training and further methods, as ``parallel_et.load`` returns it.
    n_iter_ : int
        Number of finished EM iterations.
    n_features_in_ : int
        Number of features of the training data.

    Examples
    --------
    >>> from parallel_et.sklearn import MultipleCauses
    >>> model = MultipleCauses("linca", n_components=12, random_state=1).fit(X)  # doctest: +SKIP
    >>> activity = model.transform(X)  # doctest: +SKIP
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
        """Return the equivalent job of parallel_et as nested dicts, without data.

        Returns
        -------
        job : dict
            Sections [model], [data], [inference], [anneal] and [run].
        """
        seed = int(check_random_state(self.random_state).randint(2**31))
        model = self._model
        exact = self.n_components <= EXACT_CAUSES or (model is not None and model.latents.max_active == 1)
        default: dict[str, Any] = {"scheme": "exact"} if exact else {"candidates": CANDIDATES, "gamma": GAMMA}
        if model is not None and not issubclass(model.View, EnumeratingView):
            default = {"scheme": "sample", **({"candidates": CANDIDATES} if self.n_components > EXACT_CAUSES else {})}
        return {
            "model": {"name": self.model, "causes": self.n_components, **(self.options or {})},
            "data": {"centre": self.centre},
            "inference": default if self.inference is None else dict(self.inference),
            "anneal": {"iterations": self.max_iter, **(self.anneal or {})},
            "run": {"seed": seed},
        }

    def fit(self, X: Any, y: Any = None) -> "MultipleCauses":
        """Train the model with ``max_iter`` EM iterations.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Training data.
        y : ignored
            For compatibility with scikit-learn.

        Returns
        -------
        self : MultipleCauses
            The trained estimator.
        """
        X = self._validated(X, reset=True)
        try:
            self.result_ = fit(self.job(), X, comm=self._comm)
        except UserError as error:
            raise ValueError(str(error)) from None
        return self._set_attributes()

    def partial_fit(self, X: Any, y: Any = None) -> "MultipleCauses":
        """Perform one EM iteration on a batch, with statistics averaged over the batches so far.

        The first call initialises the model, unless ``fit`` was called before: training then continues from there.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            A batch of training data.
        y : ignored
            For compatibility with scikit-learn.

        Returns
        -------
        self : MultipleCauses
            The trained estimator.
        """
        previous = getattr(self, "result_", None)
        X = self._validated(X, reset=previous is None)
        try:
            self.result_ = train_on_batch(self.job(), X, self._comm, previous)
        except UserError as error:
            raise ValueError(str(error)) from None
        return self._set_attributes()

    def _set_attributes(self) -> "MultipleCauses":
        self.components_ = self.result_.W.T
        self.n_iter_ = int(self.result_.metadata["iteration"])
        return self

    @property
    def _comm(self) -> Any:
        return Ranks.self_only().comm if self.comm is None else self.comm

    def transform(self, X: Any) -> np.ndarray:
        """Return the posterior means of the causes.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)

        Returns
        -------
        X_new : array of shape (n_samples, n_components)
            Probabilities that the causes are active, or means of their strengths in models with strengths.
            Models of objects at positions have one column per object and position.
        """
        return self._inferred("transform", X)

    def score_samples(self, X: Any) -> np.ndarray:
        """Return the log evidence of each sample, log p(x), or a lower bound (ELBO) from the states of the E-step.

        The evidence of the model "ssmca" is unknown. For this model, return the mean log joint of the Gibbs samples.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)

        Returns
        -------
        log_prob : array of shape (n_samples,)
            Log evidence in nats.
        """
        return self._inferred("evidence", X)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean of ``score_samples``, for model selection.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
        y : ignored
            For compatibility with scikit-learn.

        Returns
        -------
        score : float
            Mean log evidence in nats per sample.
        """
        return float(self.score_samples(X).mean())

    def reconstruct(self, X: Any) -> np.ndarray:
        """Return the posterior means of the samples without noise, e.g. for denoising.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)

        Returns
        -------
        X_denoised : array of shape (n_samples, n_features)
        """
        return self._inferred("reconstruct", X)

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Return the samples without noise that given causes produce.

        For linear models, the output of ``transform`` gives the result of ``reconstruct``. Other models use the causes
        with probability above 1/2, so binary states are the natural input.

        Parameters
        ----------
        X : array of shape (n_samples, n_components)
            Probabilities or strengths of the causes.

        Returns
        -------
        X_original : array of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        result = self.result_
        points = decode(result.model, result.params, np.asarray(X, np.float64))
        return points + result.data["mean"] if self.centre else points

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Draw samples from the trained model.

        Parameters
        ----------
        n_samples : int, default 1
            Number of samples.

        Returns
        -------
        X : array of shape (n_samples, n_features)
            The samples.
        states : array of shape (n_samples, n_components)
            States of the causes of each sample.
        """
        check_is_fitted(self)
        return self.result_.generate(n_samples, int(check_random_state(self.random_state).randint(2**31)))

    def _inferred(self, method: str, X: Any) -> np.ndarray:
        """Return the result of a method of the trained model for points."""
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        try:
            return getattr(self.result_, method)(X, self.comm)
        except UserError as error:
            raise ValueError(str(error)) from None

    def _validated(self, X: Any, reset: bool) -> np.ndarray:
        """Return validated points in the form that the model takes."""
        X = validate_data(self, X, dtype=DTYPES, reset=reset)
        if self.binarize is not None:
            X = (self.binarize < X).astype(X.dtype)
        if self._non_negative:
            check_non_negative(X, "MultipleCauses")
        return X

    @property
    def _model(self) -> Model | None:
        """The model of points of one dimension; None if its keys are wrong, which ``fit`` reports."""
        try:
            kind = MODELS.find(self.model)
            return kind(options_class(kind)(name=self.model, causes=self.n_components, **(self.options or {})), 1)
        except (KeyError, UserError, ValidationError):
            return None

    @property
    def _non_negative(self) -> bool:
        """Return whether the model accepts only non-negative data, such as counts."""
        model = self._model
        return model is not None and isinstance(model.noise, RestrictsData)

    @property
    def _n_features_out(self) -> int:
        return self.result_.model.latents.atoms

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = self._non_negative and self.binarize is None
        return tags
