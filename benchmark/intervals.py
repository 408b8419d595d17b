"""Numbers of several seeds: learning curves, means and differences with their intervals, the interquartile mean."""

import numpy as np

LAST = 100  # a run's result is the mean return of its last 100 episodes
LEAST_SEEDS = 5  # for an interval: a bootstrap of fewer means nothing


def curve(positions, returns, grid):
    """Mean return of the last 100 episodes that had ended by each step of the grid, (G,); NaN before the first. After
    the last one it stays what it was. positions, returns: (E,)."""
    sums = np.concatenate([[0.0], np.cumsum(returns)])
    ended = np.searchsorted(positions, grid, side="right")
    first = np.maximum(ended - LAST, 0)
    means = np.full(len(grid), np.nan)
    np.divide(sums[ended] - sums[first], ended - first, out=means, where=ended > 0)
    return means


def mean_interval(values) -> tuple[float, float, float]:
    """The mean of (S,) values, one a seed, with its 95% interval; see _interval."""
    return _interval(np.mean, values)


def difference_interval(a, b, paired: bool) -> tuple[float, float, float]:
    """mean(b) − mean(a) with its 95% interval. paired: a[i] and b[i] belong together (the same seed, (S,) each);
    otherwise the two are sampled apart, (S_a,) and (S_b,)."""
    if paired:
        return mean_interval(np.subtract(b, a))
    return _interval(_mean_difference, b, a)


def interquartile_mean(values) -> float:
    """The mean of the middle half of (S,) values: one seed that fails hardly moves it (Agarwal et al. 2021)."""
    from scipy.stats import trim_mean

    return float(trim_mean(values, 0.25))


def verdict(low: float, high: float) -> str:
    """What the interval of a difference says: "better", "worse" or "no difference seen"; "" if there is none."""
    if not np.isfinite(low):
        return ""
    if low > 0:
        return "better"
    if high < 0:
        return "worse"
    return "no difference seen"


def _mean_difference(b, a, axis):
    return b.mean(axis) - a.mean(axis)


def _interval(statistic, *samples) -> tuple[float, float, float]:
    """The statistic, a mean or a difference of two, and its 95% interval from 9,999 seeded bootstrap samples; (−inf,
    inf) with fewer than LEAST_SEEDS values, or with one that is not finite. The 2.5th and 97.5th percentiles would be
    too narrow for few seeds: these are as far out, in standard errors, as Student's t with Welch's degrees of freedom
    (Hesterberg 2015, "What Teachers Should Know About the Bootstrap", section 5.3)."""
    from scipy.stats import bootstrap, norm, t

    arrays = [np.asarray(sample, dtype=float) for sample in samples]
    value = float(statistic(*arrays, axis=-1))
    counts = np.array([len(sample) for sample in arrays])
    if counts.min() < LEAST_SEEDS or not np.isfinite(np.concatenate(arrays)).all():
        return value, -np.inf, np.inf
    errors = np.array([sample.var(ddof=1) / len(sample) for sample in arrays])  # squared standard errors
    if errors.sum() == 0:
        return value, value, value
    biased = sum(sample.var() / len(sample) for sample in arrays)  # what the bootstrap has in their place
    freedom = errors.sum() ** 2 / (errors**2 / (counts - 1)).sum()
    outside = norm.cdf(-t.ppf(0.975, freedom) * np.sqrt(errors.sum() / biased))
    found = bootstrap(arrays, statistic, method="percentile", vectorized=True, rng=np.random.default_rng(1))
    low, high = np.percentile(found.bootstrap_distribution, [100 * outside, 100 * (1 - outside)])
    return value, float(low), float(high)
