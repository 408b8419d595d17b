"""benchmark/intervals.py: curves, and intervals that hold the truth as often as they say."""

import intervals
import numpy as np
from scipy.stats import bootstrap, norm, t, ttest_ind


def test_curve_is_the_mean_of_the_last_hundred():
    rng = np.random.default_rng(2)
    steps = np.sort(rng.integers(0, 1000, 300))
    returns = rng.normal(size=300)
    grid = np.linspace(0, 1000, 21)
    found = intervals.curve(steps, returns, grid)
    for position, value in zip(grid, found):
        ended = returns[steps <= position][-100:]
        assert np.isclose(value, ended.mean()) if len(ended) else np.isnan(value)


def test_interval_is_the_expanded_percentile_bootstrap():
    values = np.random.default_rng(3).normal(5, 2, size=8)
    outside = 2 * norm.cdf(-t.ppf(0.975, 7) * np.sqrt(8 / 7))
    how = {"method": "percentile", "n_resamples": 9999, "vectorized": True, "rng": np.random.default_rng(1)}
    expected = bootstrap((values,), np.mean, confidence_level=1 - outside, **how).confidence_interval
    assert np.allclose(intervals.mean_interval(values), (values.mean(), *expected))
    assert intervals.mean_interval(values) == intervals.mean_interval(values)


def test_intervals_of_normal_samples_hold_the_truth_in_about_95_of_100_cases():
    rng = np.random.default_rng(4)
    hits = {"mean": 0, "difference": 0}
    for _ in range(200):
        a = rng.normal(1, 1, size=10)
        b = rng.normal(3, 2, size=15)
        _, low, high = intervals.mean_interval(a)
        hits["mean"] += low < 1 < high
        _, low, high = intervals.difference_interval(a, b, paired=False)
        hits["difference"] += low < 2 < high
    assert all(0.9 < count / 200 < 0.99 for count in hits.values())


def test_difference_of_pairs_is_the_interval_of_their_differences():
    rng = np.random.default_rng(5)
    a = rng.normal(0, 100, size=6)
    b = a + rng.normal(1, 0.1, size=6)
    assert intervals.difference_interval(a, b, paired=True) == intervals.mean_interval(b - a)
    mean, low, high = intervals.difference_interval(a, b, paired=False)
    assert np.isclose(mean, (b - a).mean()) and high - low > 50  # without the pairs nothing can be told
    assert intervals.difference_interval(a, a + 1000, paired=False)[1] > 0
    assert intervals.difference_interval([1] * 5, [3] * 5, paired=False) == (2.0, 2.0, 2.0)


def test_seeds_of_unequal_spread_have_welchs_degrees_of_freedom():
    rng = np.random.default_rng(6)
    a = rng.normal(0, 10, size=5)
    b = rng.normal(0, 0.1, size=40)
    value, low, high = intervals.difference_interval(a, b, paired=False)
    welch = ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    pooled = ttest_ind(b, a, equal_var=True).confidence_interval(0.95)
    assert value == b.mean() - a.mean()
    assert 0.8 < (high - low) / (welch.high - welch.low) < 1.1  # the bootstrap's tails differ a little from Student's
    assert (high - low) / (pooled.high - pooled.low) > 1.5


def test_few_seeds_or_one_that_is_not_finite_have_no_interval():
    nan = float("nan")
    assert intervals.mean_interval([1, 2, 3, 4, nan])[1:] == (-np.inf, np.inf)
    assert intervals.difference_interval([1] * 5, [2, 3, 4, 5, 6, nan], paired=False)[1:] == (-np.inf, np.inf)
    assert intervals.difference_interval([2, 3, 4, 5, nan], [1] * 5, paired=False)[1:] == (-np.inf, np.inf)
    assert intervals.mean_interval([1, 2, 3, 4]) == (2.5, -np.inf, np.inf)
    assert intervals.difference_interval([1] * 9, [2] * 4, paired=False) == (1.0, -np.inf, np.inf)


def test_the_interquartile_mean_is_that_of_the_middle_half():
    assert intervals.interquartile_mean([-1000.0, 1, 2, 3, 4, 5, 6, 1000]) == 3.5
