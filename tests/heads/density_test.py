"""Mixtures of the tower: densities against scikit-learn, gradients, starts, samples, floors."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from mtl import checks, heads, types
from mtl.step import draws
from tests.heads import harness

mixture = pytest.importorskip("sklearn.mixture")
gaussian = pytest.importorskip("sklearn.mixture._gaussian_mixture")
tf1 = tf.compat.v1

SIZES = (3, 2, 4)


def make(kind="full", **settings):
    if kind == "categorical":
        return heads.CategoricalMixture(
            name="x", sizes=SIZES, **{"num_components": 3, "min_probability": 0.01, **settings}
        )
    return heads.GaussianMixture(
        name="x", covariance=kind, **{"num_components": 3, "min_scale": 0.1, **settings}
    )


def towers(kind="full", num=40, seed=0):
    rng = np.random.default_rng(seed)
    if kind == "categorical":
        ids = [rng.integers(0, size, num) for size in SIZES]
        return np.concatenate([np.eye(s)[own] for s, own in zip(SIZES, ids, strict=True)], 1)
    return rng.normal(size=(num, 4)) * 2


class Built:
    """A head on towers, with all of its variables at random."""

    def __init__(self, head, given, seed=1, rows=None):
        self.head, self.graph = head, tf.Graph()
        with self.graph.as_default():
            self.tower = tf1.placeholder_with_default(np.float32(given), [None, given.shape[1]])
            with tf1.variable_scope("head/x"):
                if rows is None:
                    self.logits = head.logits(self.tower)
                else:
                    with draws.know_rows({"row": tf.constant(rows)}):
                        self.logits = head.logits(self.tower)
            self.loss = head.loss(self.logits, {})
            self.predictions = head.predictions(self.logits)
            self.variables = {v.op.name: v for v in tf1.trainable_variables()}
            self.kept = {v.op.name: v for v in tf1.global_variables()}
            self.session = tf1.Session()
            self.session.run(tf1.global_variables_initializer())
            rng = np.random.default_rng(seed)
            self.values = {
                name: rng.normal(size=v.shape).astype("f") for name, v in self.variables.items()
            }
            self.load(self.values)

    def load(self, values):
        with self.graph.as_default():
            for name, value in values.items():
                self.kept[name].load(value, self.session)

    def run(self, fetched, given=None):
        feed = {} if given is None else {self.tower: given}
        return self.session.run(fetched, feed)

    def gradients(self, loss):
        with self.graph.as_default():
            found = tf.gradients(loss, list(self.variables.values()))
            return self.run(dict(zip(self.variables, found, strict=True)))


def softplus(x):
    return np.log1p(np.exp(np.float64(x)))


def gaussian_parameters(head, values, start=0):
    """Shares, means and covariances of the variables, by the formulas of the class."""
    own = {name.split("/")[-1]: np.float64(value[start]) for name, value in values.items()}
    scales = head.min_scale + softplus(own["scales"])
    width = scales.shape[1]
    below = np.tril(own.get("coefficients", np.zeros([*scales.shape, width])), -1)
    factors = np.linalg.inv(np.eye(width) - below) * scales[:, np.newaxis]
    shares = np.exp(own["weights"]) / np.exp(own["weights"]).sum()
    return shares, own["means"], factors @ factors.swapaxes(1, 2)


def as_sklearn(head, values):
    shares, means, covariances = gaussian_parameters(head, values)
    theirs = mixture.GaussianMixture(head.num_components, covariance_type="full")
    theirs.weights_, theirs.means_, theirs.covariances_ = shares, means, covariances
    theirs.precisions_cholesky_ = gaussian._compute_precision_cholesky(covariances, "full")
    return theirs


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_density_and_responsibilities_are_those_of_scikit_learn(kind):
    built = Built(make(kind), towers())
    loss, found = built.run([built.loss, built.predictions])
    theirs = as_sklearn(built.head, built.values)
    np.testing.assert_allclose(found["log_density"], theirs.score_samples(towers()), rtol=1e-4)
    expected = theirs.predict_proba(towers())
    np.testing.assert_allclose(found["responsibilities"], expected, atol=1e-4)
    np.testing.assert_array_equal(found["component"], expected.argmax(1))
    assert loss == pytest.approx(-theirs.score(towers()), rel=1e-5)
    assert ("head/x/coefficients" in built.variables) == (kind == "full")


def of_sklearn(head, theirs):
    """The variables that make the head what scikit-learn has fitted."""
    factors = np.linalg.cholesky(
        theirs.covariances_
        if theirs.covariance_type == "full"
        else np.stack([np.diag(own) for own in theirs.covariances_])
    )
    scales = np.diagonal(factors, axis1=1, axis2=2)
    below = np.eye(scales.shape[1]) - scales[:, :, np.newaxis] * np.linalg.inv(factors)
    values = {
        "weights": np.log(theirs.weights_),
        "means": theirs.means_,
        "scales": np.log(np.expm1(scales - head.min_scale)),
        "coefficients": below,
    }
    return {f"head/x/{name}": value[np.newaxis] for name, value in values.items()}


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_with_noise_steps_end_where_em_with_reg_covar_ends(kind):
    given, head = towers(num=60), make(kind, num_components=2, min_scale=0.01, noise=0.5)
    theirs = mixture.GaussianMixture(
        2,
        covariance_type="full" if kind == "full" else "diag",
        reg_covar=0.25,
        tol=1e-12,
        max_iter=5000,
        random_state=0,
    )
    values = of_sklearn(head, theirs.fit(given))
    steepness = {}
    for noise in (0.5, 0.0):
        built = Built(dataclasses.replace(head, noise=noise), given)
        built.load({name: values[name] for name in built.variables})
        # The values are those without noise.
        assert built.run(built.loss) == pytest.approx(-theirs.score(given), rel=1e-5)
        steepness[noise] = max(np.abs(g).max() for g in built.gradients(built.loss).values())
    assert steepness[0.5] < 1e-4
    assert steepness[0.0] > 0.02


def class_probabilities(head, values, start=0):
    """Shares [K], and the probabilities [K, size] of every value."""
    own = {name.split("/")[-1]: np.float64(value[start]) for name, value in values.items()}
    shares = np.exp(own["weights"]) / np.exp(own["weights"]).sum()
    found = []
    for logits in np.split(own["probabilities"], np.cumsum(SIZES)[:-1], axis=1):
        soft = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        floor = head.min_probability
        found.append(floor + (1 - floor * logits.shape[1]) * soft)
    return shares, found


def test_latent_classes_multiply_probabilities_and_leave_out_missing_values():
    given = towers("categorical")
    given[0, :3] = 0
    built = Built(make("categorical"), given)
    found = built.run(built.predictions)
    shares, probabilities = class_probabilities(built.head, built.values)
    joint = np.tile(shares, [len(given), 1])
    for own, hot in zip(probabilities, np.split(given, np.cumsum(SIZES)[:-1], axis=1), strict=True):
        joint *= np.where(hot.any(1)[:, None], hot @ own.T, 1)
        np.testing.assert_allclose(own.sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(found["log_density"], np.log(joint.sum(1)), rtol=1e-5)
    np.testing.assert_allclose(
        found["responsibilities"], joint / joint.sum(1, keepdims=True), rtol=1e-4
    )


def test_a_tower_that_is_not_one_hot_is_refused():
    with pytest.raises(checks.UserError, match=r"sizes of task 'x' must add up to 8, the width"):
        Built(make("categorical"), np.zeros([2, 8]))
    for wrong in (np.full([2, 9], 0.5), np.ones([2, 9])):
        with pytest.raises(tf.errors.InvalidArgumentError, match="its tower must hold one-hot"):
            built = Built(make("categorical"), wrong)
            built.run(built.loss)


@pytest.mark.parametrize("kind", ["diagonal", "full", "categorical"])
def test_the_gradient_is_that_of_the_likelihood_and_none_reaches_the_tower(kind):
    built = Built(make(kind), towers(kind))
    with built.graph.as_default():
        plain = -tf.reduce_mean(tf.reduce_logsumexp(built.logits, axis=-1))
        assert tf.gradients(built.loss, built.tower) == [None]
    stopped, expected = built.gradients(built.loss), built.gradients(plain)
    for name, gradient in expected.items():
        size = np.abs(gradient).max()
        assert size > 0
        np.testing.assert_allclose(stopped[name], gradient, atol=1e-6 * size, err_msg=name)


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["diagonal", "full", "categorical"])
def test_the_gradient_is_the_slope_of_the_reference(kind):
    built = Built(make(kind), towers(kind))
    gradients = built.gradients(built.loss)

    def loss(values):
        if kind == "categorical":
            shares, probabilities = class_probabilities(built.head, values)
            hots = np.split(towers(kind), np.cumsum(SIZES)[:-1], axis=1)
            joint = shares * np.prod(
                [hot @ own.T for own, hot in zip(probabilities, hots, strict=True)], axis=0
            )
            return -np.log(joint.sum(1)).mean()
        shares, means, covariances = gaussian_parameters(built.head, values)
        joint = [
            share * stats.multivariate_normal(mean, covariance).pdf(towers(kind))
            for share, mean, covariance in zip(shares, means, covariances, strict=True)
        ]
        return -np.log(np.sum(joint, axis=0)).mean()

    rng = np.random.default_rng(3)
    for name, value in built.values.items():
        for _ in range(5):
            index = tuple(rng.integers(0, size) for size in value.shape)
            ends = []
            for sign in (1, -1):
                moved = {key: np.float64(own) for key, own in built.values.items()}
                moved[name][index] += sign * 1e-5
                ends.append(loss(moved))
            slope = (ends[0] - ends[1]) / 2e-5
            assert gradients[name][index] == pytest.approx(slope, rel=1e-3, abs=1e-5), name


@pytest.mark.parametrize("kind", ["full", "categorical"])
def test_starts_train_as_if_alone_and_the_best_one_is_reported_and_predicted(kind):
    built = Built(make(kind, num_starts=3), towers(kind))
    before = np.array([0.5, 0.2, 0.3], "f")
    built.load({"head/x/average_losses": before})
    gradients, losses = built.gradients(built.loss), []
    for start in range(3):
        alone = Built(make(kind), towers(kind))
        alone.load({name: value[start : start + 1] for name, value in built.values.items()})
        losses.append(alone.run(alone.loss))
        for name, gradient in alone.gradients(alone.loss).items():
            size = np.abs(gradient).max()
            np.testing.assert_allclose(
                gradients[name][start], gradient[0], atol=1e-5 * size, err_msg=name
            )
        if start == 1:
            expected = alone.run(alone.predictions)
            served = Built(built.head, towers(kind), rows=np.arange(40))
            served.load({"head/x/average_losses": before})
            for found in (built.run(built.predictions), served.run(served.predictions)):
                assert list(found) == list(expected)
                for name, value in found.items():
                    np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5)
            assert served.run(served.loss) == pytest.approx(losses[1], rel=1e-5)
    assert built.run(built.loss) == pytest.approx(losses[1], rel=1e-5)
    with built.graph.as_default():
        built.run(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))
        after = built.kept["head/x/average_losses"].read_value()
    expected = 0.99 * before + 0.01 * np.array(losses)
    np.testing.assert_allclose(built.run(after), expected, rtol=1e-4)


def test_one_start_keeps_nothing_more():
    built = Built(make(), towers())
    assert set(built.kept) == set(built.variables)
    assert built.logits.shape[1] == 3


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_samples_are_of_the_mixture(kind):
    head = make(kind, num_samples=50)
    built = Built(head, towers(num=400), rows=np.arange(400))
    shares, means, covariances = gaussian_parameters(head, built.values)
    samples = built.run(built.predictions)["samples"]
    assert samples.shape == (400, 50, 4)
    flat = np.float64(samples.reshape(-1, 4))
    mean = shares @ means
    spread = np.einsum("k,kij->ij", shares, covariances)
    spread += np.einsum("k,ki,kj->ij", shares, means - mean, means - mean)
    scale = np.sqrt(np.diag(spread))
    assert np.abs((flat.mean(0) - mean) / scale).max() < 0.04
    assert np.abs((np.cov(flat.T) - spread) / np.outer(scale, scale)).max() < 0.06
    likelihood = built.run(built.predictions["log_density"], flat[:400])
    theirs = as_sklearn(head, built.values)
    np.testing.assert_allclose(likelihood, theirs.score_samples(flat[:400]), rtol=1e-3, atol=1e-3)
    own, _ = theirs.sample(20000)
    entropy, error = theirs.score(own), theirs.score_samples(own).std() / 20000**0.5
    assert theirs.score(flat) == pytest.approx(entropy, abs=5 * error)


def test_samples_of_latent_classes_are_ids():
    head = make("categorical", num_samples=50)
    built = Built(head, towers("categorical", 400), rows=np.arange(400))
    shares, probabilities = class_probabilities(head, built.values)
    samples = built.run(built.predictions)["samples"].reshape(-1, 3)
    for ids, own in zip(samples.T, probabilities, strict=True):
        counts = np.bincount(ids.astype(int), minlength=own.shape[1])
        np.testing.assert_allclose(counts / len(ids), shares @ own, atol=0.015)
    pair = np.mean((samples[:, 0] == 0) & (samples[:, 1] == 0))
    expected = shares @ (probabilities[0][:, 0] * probabilities[1][:, 0])
    assert pair == pytest.approx(expected, abs=0.015)


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_the_floor_holds_over_20_seeds_of_equal_rows(kind):
    """Eight different rows, each four times, and a number that never varies."""
    given = np.repeat(np.random.default_rng(0).normal(size=(8, 4)), 4, axis=0)
    given[:, 3] = 0.7
    head = make(kind, num_starts=20, num_components=8, min_scale=0.05)
    built = Built(head, given)
    with built.graph.as_default():
        step = tf1.train.AdamOptimizer(0.1).minimize(built.loss)
        built.session.run(tf1.global_variables_initializer())
    for _ in range(300):
        built.run(step)
    best = 4 * np.log(0.05 * np.sqrt(2 * np.pi))
    values = built.run(built.variables)
    for start in range(20):
        shares, means, covariances = gaussian_parameters(head, values, start)
        factors = np.linalg.cholesky(covariances)
        assert np.diagonal(factors, axis1=1, axis2=2).min() >= 0.05 - 1e-6
        densities = [
            share * stats.multivariate_normal(mean, covariance).pdf(given)
            for share, mean, covariance in zip(shares, means, covariances, strict=True)
        ]
        loss = -np.log(np.sum(densities, axis=0)).mean()
        # Some components shrink to the floor; only the bound stops them.
        assert best - 1e-3 < loss < best + 8


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_loss_and_gradients_are_finite_far_away(kind):
    given = np.array([[1e4, -1e4, 1e4, 0.0], [0.0, 0.0, 0.0, 0.0]])
    built = Built(make(kind), given)
    assert np.isfinite(built.run(built.loss))
    assert all(np.all(np.isfinite(g)) for g in built.gradients(built.loss).values())


def test_metrics_are_sums_over_rows():
    logits = np.random.default_rng(0).normal(size=(100, 3)).astype("f")
    got = harness.evaluate(make(), logits, {"any": np.zeros(100, "f")})
    densities = np.exp(np.float64(logits))
    loss = -np.log(densities.sum(1)).mean()
    shares = (densities / densities.sum(1, keepdims=True)).mean(0)
    assert got["average_loss"] == pytest.approx(loss, rel=1e-5)
    assert got["log_likelihood"] == pytest.approx(-loss, rel=1e-5)
    assert got["used_components"] == pytest.approx(np.exp(-np.sum(shares * np.log(shares))))
    assert got["nan_predictions"] == 0
    logits[3] = np.nan
    got = harness.evaluate(make(), logits, {"any": np.zeros(100, "f")})
    assert got.pop("nan_predictions") == 1
    assert np.all(np.isnan(list(got.values())))


def test_every_row_counts_one():
    head, lists = make(), tf.ragged.constant([[1], [], [2, 3]])
    assert float(head.label_weight({"a": tf.fill([5], np.nan)})) == 5
    assert float(head.label_weight({"a": lists})) == 3
    assert float(head.label_weight({})) == 1
    assert head.check({"a": "anything"}) is None
    empty = Built(head, np.zeros([0, 4]))
    assert empty.run(empty.loss) == 0


def test_an_untrained_mixture_has_the_spread_that_is_set():
    head = make("diagonal", num_components=2000, initial_spread=3.0, min_scale=0.5)
    with tf.Graph().as_default(), tf1.Session() as session:
        means, scales = head.parameters(4)
        session.run(tf1.global_variables_initializer())
        means, scales = session.run([means, scales])
    assert means.std() == pytest.approx(3.0, rel=0.05)
    np.testing.assert_allclose(scales, 1.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "settings", "error"),
    [
        ("full", {"num_components": 0}, r"num_components of task 'x' must be at least 1, got 0"),
        ("full", {"num_starts": 0}, r"num_starts of task 'x' must be at least 1, got 0"),
        ("fulll", {}, r"must be one of diagonal, full, got 'fulll'. Did you mean 'full'\?"),
        ("full", {"min_scale": 0}, r"min_scale of task 'x' must be above 0, got 0"),
        ("full", {"min_scale": 0.5}, r"initial_spread of task 'x' must be above 2 min_scale, 1,"),
        ("categorical", {"min_probability": 0.25}, r"must be below 1 / 4, the largest of sizes"),
    ],
)
def test_wrong_settings(kind, settings, error):
    with pytest.raises(checks.UserError, match=error):
        make(kind, **settings)


@pytest.mark.parametrize("sizes", [[], [3, 1], "32", [3.0]])
def test_wrong_sizes(sizes):
    with pytest.raises(checks.UserError, match="CategoricalMixture.sizes of task 'x' must"):
        heads.CategoricalMixture(name="x", sizes=sizes)


def test_what_mixes_rows_refuses_it():
    """Mixing needs an `ExampleHead`: the density of a mixed row belongs to no row."""
    assert not isinstance(make(), types.ExampleHead)
