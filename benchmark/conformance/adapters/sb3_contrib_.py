"""sb3-contrib: trainings of MaskablePPO and RecurrentPPO. The latter's minibatches are padded sequences with states of
the rollout, and it has two LSTMs, which the reference doesn't know: what follows after its loss is compared alone."""

import sb3
import sb3_contrib

NAME = f"sb3-contrib {sb3_contrib.__version__}"
LSTMS = ("lstm_actor", "lstm_critic")
OPTIONS = {"record": {"": {}, "clip_range_vf=0.2": {"clip_range_vf": 0.2}, "RecurrentPPO": {"recurrent": True}}}


def record(recurrent=False, **options):
    if recurrent:
        small = {"net_arch": [], "lstm_hidden_size": 8}
        model = sb3.make(sb3_contrib.RecurrentPPO, "discrete", "MlpLstmPolicy", policy_kwargs=small, **options)
        return sb3.train(model, "discrete", LSTMS)
    return sb3.train(sb3.make(sb3_contrib.MaskablePPO, "multidiscrete", **options), "multidiscrete")
