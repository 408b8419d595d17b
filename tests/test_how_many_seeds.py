"""docs/how_many_seeds.py: its rules judge as the page says, its numbers are those of textbooks and of the page."""

import csv

import how_many_seeds
import numpy as np
import pytest

PAGE = how_many_seeds.PAGE.read_text("utf-8")


def test_seeds_for_an_effect_are_those_of_tables_of_power():
    """Two groups, 5% on both sides, 80% (Cohen 1992): 17 a group for one standard deviation, 64 for a half."""
    assert [how_many_seeds.seeds_for(effect) for effect in (1.0, 0.5, 0.8)] == [17, 64, 26]
    assert how_many_seeds.seeds_for(4.0) == 5  # the least that report.py asks for


def test_rules_judge_four_sets_of_different_seeds():
    class InOrder:
        def permutation(self, returns):
            return returns

    before = [1.0, 2.0, 3.0, 4.0, 5.0]
    clear = [11.0, 12.0, 13.0, 14.0, 15.0]
    slight = [1.5, 2.5, 3.5, 4.5, 5.5]
    judged = how_many_seeds.improvements(np.array(before + slight + clear + before), 5, InOrder())
    assert dict(zip(how_many_seeds.RULES, judged.tolist())) == {
        "higher mean": True, "no overlap of ±": False, "best of three": True, "best of three, compared": True,
        "compared": False,
    }  # fmt: skip
    judged = how_many_seeds.improvements(np.array(before + clear + before + before), 5, InOrder())
    assert judged.all()
    assert not how_many_seeds.improvements(np.array(before * 4), 5, InOrder()).any()


def test_an_unchanged_script_improves_by_chance_as_often_as_it_must(monkeypatch):
    monkeypatch.setattr(how_many_seeds, "TRIALS", 200)
    monkeypatch.setattr(how_many_seeds, "SEEDS", (3, 30))
    shares = how_many_seeds.false_alarms(np.random.default_rng(3).normal(size=100))
    assert list(shares) == [3]  # 100 seeds are too few for four sets of 30
    by_rule = dict(zip(how_many_seeds.RULES, shares[3]))
    assert by_rule["higher mean"] == pytest.approx(1 / 2, abs=0.1)
    assert by_rule["best of three"] == pytest.approx(3 / 4, abs=0.1)
    assert by_rule["compared"] == 0.0  # of three seeds there is no interval


def test_the_page_has_what_the_tables_of_runs_say():
    returns = how_many_seeds.read_returns()
    shares = {}
    with open(how_many_seeds.SHARES, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            of_rules = np.array([float(row[rule]) for rule in how_many_seeds.RULES])
            shares.setdefault(row["env_id"], {})[int(row["seeds"])] = of_rules
    assert list(shares) == list(returns)
    for env_id, values in returns.items():
        assert f"{len(values)} seeds: {values.mean():.0f} ± {values.std(ddof=1):.0f}".replace("-", "−") in PAGE
        assert how_many_seeds.alarm_table(shares[env_id]) in PAGE
    assert how_many_seeds.effects_table(returns) in PAGE
    assert how_many_seeds.found_table() in PAGE
    assert how_many_seeds.details_table() in PAGE
