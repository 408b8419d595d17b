"""sb3-contrib: a training of MaskablePPO."""

import sb3
import sb3_contrib

NAME = f"sb3-contrib {sb3_contrib.__version__}, MaskablePPO"
OPTIONS = {"record": {"": {}, "clip_range_vf=0.2": {"clip_range_vf": 0.2}}}


def record(**options):
    return sb3.train(sb3_contrib.MaskablePPO, "multidiscrete", **options)
