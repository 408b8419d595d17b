"""The variants that reference.py can compute: a switch for each part of PPO, and its choices.

What a choice does hangs on its name, say TimeLimits.BOOTSTRAPPED. Its text is only what a row of the check says, and
can be reworded. A switch's first choice is what the 37 details say. The others are real: docs/is-your-ppo-the-ppo.md
names where some were seen; the rest are common errors.
"""

import itertools
from enum import StrEnum
from typing import NamedTuple

import numpy as np


# ---------------------------------------------------------------------------------------------- Advantages and returns
class TimeLimits(StrEnum):
    AS_AN_END = "as an end"
    BOOTSTRAPPED = "bootstrapped"
    FLOW_ON = "flow on into the next episode"
    NEXT_EPISODE = "value of the next episode"
    VALUE_BEFORE = "V(s) of before"


class TrueEnds(StrEnum):
    END = "end"
    NEXT_EPISODE = "value of the next episode"
    LAST_OBSERVATION = "value of the last observation"


class Trace(StrEnum):
    CUT = "cut"
    LEAKS_AT_LIMITS = "leaks at limits"
    LEAKS = "leaks at all ends"


class AfterRollout(StrEnum):
    VALUE_UNLESS_ENDED = "value, unless it ended"
    VALUE = "value, though it ended"
    ZERO = "zero"
    LAST_STEP = "value of the last step"


class DoneFlags(StrEnum):
    THIS_STEP = "of this step"
    STEP_BEFORE = "of the step before"
    STEP_BEFORE_FIRST_MARKED = "of the step before, with the first marked"
    STEP_BEFORE_LAST_RIGHT = "of the step before, but the last right"
    STEP_AFTER = "of the step after"
    IGNORED = "ignored"


class Gamma(StrEnum):
    IN_BOTH = "in both"
    NOT_IN_DELTA = "not in delta"
    NOT_IN_TRACE = "not in the trace"


class Lambda(StrEnum):
    AS_GIVEN = "as given"
    ONE = "1"
    ZERO = "0"


class Returns(StrEnum):
    OF_GAE = "advantages + values"
    OF_NORMALIZED = "normalized advantages + values"
    OF_SAMPLE_NORMALIZED = "normalized advantages (sample std) + values"
    ADVANTAGES = "advantages alone"
    DISCOUNTED = "discounted rewards"
    DISCOUNTED_BOOTSTRAPPED = "discounted rewards and the last value"
    ONE_STEP = "one step's"


GAE_SWITCHES: dict[str, list] = {
    "time limits": list(TimeLimits),
    "true ends": list(TrueEnds),
    "trace": list(Trace),
    "after the rollout": list(AfterRollout),
    "done flags": list(DoneFlags),
    "gamma": list(Gamma),
    "lambda": list(Lambda),
    "returns": list(Returns),
}


# ------------------------------------------------------------------------------------------------------------- The loss
class Advantages(StrEnum):
    POPULATION = "population std"
    SAMPLE = "sample std"
    AS_THEY_ARE = "not normalized"
    DIVIDED = "divided alone"
    CENTERED = "mean taken off alone"
    POPULATION_OF_ROLLOUT = "population std of the rollout"
    SAMPLE_OF_ROLLOUT = "sample std of the rollout"
    POPULATION_OF_ENVIRONMENT = "population std of each environment"
    SAMPLE_OF_ENVIRONMENT = "sample std of each environment"


class Normalization(NamedTuple):
    """How advantages are normalized."""

    over: str  # "minibatch", "rollout", or "environment": each one's part of a rollout
    ddof: int = 0  # 1 for the sample's standard deviation
    centered: bool = True
    divided: bool = True


NORMALIZATIONS = {
    Advantages.POPULATION: Normalization("minibatch"),
    Advantages.SAMPLE: Normalization("minibatch", ddof=1),
    Advantages.AS_THEY_ARE: Normalization("minibatch", centered=False, divided=False),
    Advantages.DIVIDED: Normalization("minibatch", centered=False),
    Advantages.CENTERED: Normalization("minibatch", divided=False),
    Advantages.POPULATION_OF_ROLLOUT: Normalization("rollout"),
    Advantages.SAMPLE_OF_ROLLOUT: Normalization("rollout", ddof=1),
    Advantages.POPULATION_OF_ENVIRONMENT: Normalization("environment"),
    Advantages.SAMPLE_OF_ENVIRONMENT: Normalization("environment", ddof=1),
}


class PolicyLoss(StrEnum):
    CLIPPED = "clipped"
    NOT_CLIPPED = "not clipped"
    MAX = "max in place of min"
    CLIPPED_ALONE = "clipped term alone"
    UPSIDE_DOWN = "ratio upside down"
    BROADCAST = "advantages (M, 1) against ratios (M,)"


class ValueLoss(StrEnum):
    LARGER = "larger of both"
    NOT_CLIPPED = "not clipped"
    CLIPPED_ALONE = "clipped alone"
    SMALLER = "smaller of both"
    SMOOTH_L1 = "smooth L1"
    UP_TO_10 = "squared error up to 10"


class ValueShape(StrEnum):
    AS_RETURNS = "as the returns'"
    BROADCAST = "(M, 1) against (M,)"
    BROADCAST_WITH_OLD = "(M, 1), as old values, against (M,)"


class ValueScale(StrEnum):
    HALF = "1/2"
    ONE = "1"


class EntropyBonus(StrEnum):
    YES = "yes"
    NO = "no"
    WRONG_SIGN = "wrong sign"


class GradientClip(StrEnum):
    JOINT = "joint"
    ACTOR_AND_CRITIC = "actor and critic apart"
    EACH_PARAMETER = "each parameter apart"
    EACH_NUMBER = "each number apart"
    NONE = "none"


class LogProb(StrEnum):
    SUM = "sum"
    MEAN = "mean"
    MEAN_AND_ENTROPY = "mean, entropy too"
    LAPLACE = "Laplace"  # of a Gaussian policy
    SOFTMAX_TWICE = "of a softmax of the softmax"  # of a categorical one: probabilities are taken for logits


UPDATE_SWITCHES: dict[str, list] = {
    "advantages": list(Advantages),
    "policy loss": list(PolicyLoss),
    "value loss": list(ValueLoss),
    "value's shape": list(ValueShape),
    "value scale": list(ValueScale),
    "entropy bonus": list(EntropyBonus),
    "gradient clip": list(GradientClip),
    "log-prob": list(LogProb),
}


# ------------------------------------------------------------------------------------------------------ The environment
class Update(StrEnum):
    """When running statistics take observations in."""

    BEFORE_USE = "before use"
    AFTER_USE = "after use"
    AFTER_ROLLOUT = "after each rollout"


class EpsilonIs(StrEnum):
    INSIDE = "inside the root"
    OUTSIDE = "outside"


class Variance(StrEnum):
    POPULATION = "population"
    SAMPLE = "sample"


class Statistics(StrEnum):
    SHARED = "shared"
    PER_ENVIRONMENT = "per environment"


STATISTICS_SWITCHES: dict[str, list] = {
    "update": list(Update),
    "clip": [10.0, np.inf, 5.0],
    "first count": [1e-4, 0.0, 1.0],
    "epsilon": [1e-8, 1e-2, 1e-4],
    "epsilon is": list(EpsilonIs),
    "variance": list(Variance),
    "statistics": list(Statistics),
}


class Rewards(StrEnum):
    SCALED_CLIPPED = "scaled, clipped"
    SCALED = "scaled"
    CLIPPED = "clipped"
    SCALED_PER_ENVIRONMENT = "scaled per environment"  # and clipped
    AS_THEY_ARE = "as they are"


# --------------------------------------------------------------------------------------------------------- The training
class Lstm(StrEnum):
    RIGHT = "as it should be"
    NEVER_RESET = "never reset"
    FROM_ZEROS = "learning starts from zeros"


class LateResets(StrEnum):
    LEFT_OUT = "left out"
    LEARNED = "learned from"


class ValuesAndAdvantages(StrEnum):
    ONCE = "once"
    EACH_EPOCH = "anew in each epoch"


class OldLogProbs(StrEnum):
    ACTING = "of acting"
    EACH_EPOCH = "anew in each epoch"
    EACH_STEP = "anew in each step"


class ClipRange(StrEnum):
    CONSTANT = "constant"
    ANNEALED = "annealed"


class Masks(StrEnum):
    USED = "used"
    IGNORED = "ignored when learning"


class Order(StrEnum):
    """Of the samples in the flattened rollout: by time, one step after the other, or by environment."""

    ONE = "one for all"
    ADVANTAGES_BY_ENVIRONMENT = "advantages and returns by environment, the rest by time"
    ADVANTAGES_BY_TIME = "advantages and returns by time, the rest by environment"
    OBSERVATIONS_BY_ENVIRONMENT = "observations by environment, the rest by time"
    OBSERVATIONS_BY_TIME = "observations by time, the rest by environment"


MIXED_UP_WITH_OBSERVATIONS = (Order.OBSERVATIONS_BY_ENVIRONMENT, Order.OBSERVATIONS_BY_TIME)  # all but advantages too


TRAINING_SWITCHES: dict[str, list] = {
    "rewards": list(Rewards),
    "LSTM": list(Lstm),
    "late resets": list(LateResets),
    "values and advantages": list(ValuesAndAdvantages),
    "old log-probs": list(OldLogProbs),
    "clip range": list(ClipRange),
    "masks": list(Masks),
    "order of samples": list(Order),
}


# ---------------------------------------------------------------------------------------------------------- Choosing
def defaults(switches: dict) -> dict:
    return {name: choices[0] for name, choices in switches.items()}


def by_deviations(switches, most, start=None):
    """All choices that differ from `start` in at most so many switches, those with the fewest first."""
    start = start or defaults(switches)
    yield dict(start)
    for count in range(1, most + 1):
        for names in itertools.combinations(switches, count):
            others = [[choice for choice in switches[name] if choice != start[name]] for name in names]
            for choices in itertools.product(*others):
                yield start | dict(zip(names, choices))


def describe(chosen, start):
    """The choices that differ from `start`."""
    return ", ".join(f"{name} {choice}" for name, choice in chosen.items() if choice != start[name])
