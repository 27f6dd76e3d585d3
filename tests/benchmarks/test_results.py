"""Records are rendered into pages: tables, plots, and verdicts that follow the numbers."""

import json
from pathlib import Path
from typing import Any

import pytest

from robustinfer.smoothing.bounds import clopper_pearson_lower, radius_top_class

from .conftest import FOLDER


@pytest.fixture
def rendered(tmp_path: Path) -> Any:
    """Render the result files given by name; returns all pages as one text."""

    def render(**documents: Any) -> Any:
        results = tmp_path / "results"
        results.mkdir(exist_ok=True)
        for name, document in documents.items():
            (results / f"{name}.json").write_text(json.dumps(document))
        from benchmarks.lib.details import pages
        from benchmarks.lib.topics import results_page

        details = pages(results, tmp_path / "plots")
        return "\n".join([results_page(results, details), *details.values()])

    return render


def rate(count: Any, images: Any = 1000) -> Any:
    spread = 0.02
    share = count / images
    return {"rate": share, "count": count, "images": images, "low": share - spread, "high": share + spread}


def row(name: Any, robust: Any, *, kind: Any = None, betas: Any = (1.0,), last: Any = None) -> Any:
    stages = [{"epochs": 2, "seconds": 1.0, "betas": betas[: number + 1]} for number in range(len(betas))]
    epochs = [{"seconds": 1.0, "cpu_seconds": 1.0, "stage": 1, "robust_accuracy": 0.5}]
    found = {
        "name": name,
        "kind": kind or (name if name in ("single", "wider", "independent") else "boosted"),
        "label": f"the {name} row",
        "delta": 0.3,
        "seed": 0,
        "recipe": {"seed": 0, "limit": 500},
        "training": {"seconds": 9.0, "cpu_seconds": 5.0, "epochs": epochs},
        "stages": stages,
        "ensemble": {"clean": rate(950), "pgd-20x10": rate(robust)},
    }
    return found | ({"last_member": {"pgd-20x10": rate(last)}} if last is not None else {})


def linf(*rows: Any) -> Any:
    return {"benchmark": "linf_mnist", "test_images": 1000, "rows": {f"0.3/0/{item['name']}": item for item in rows}}


def test_a_missing_result_is_named(rendered: Any) -> None:
    page = rendered()
    assert "Not measured yet" in page
    assert "Missing: `linf_mnist`, `cifar10`." in page


def test_verdicts_follow_the_numbers(rendered: Any) -> None:
    rows = [row("single", 700), row("independent", 780), row("exact-corrective", 800, betas=(0.4, 1.1), last=850)]
    page = rendered(linf_mnist=linf(*rows))
    assert "| the single row | 2 | 9 | 5 | 95.0 [93.0, 97.0] | 70.0 [68.0, 72.0] |" in page
    assert "Against the single row: better, 80.0 % against 70.0 %." in page
    assert "Against the independent row: no significant difference, 80.0 % against 78.0 %." in page
    assert "the one being trained is measured alone" in page
    assert "Against its own last member: worse, 80.0 % against 85.0 %." in page


def test_several_seeds_give_mean_and_range(rendered: Any) -> None:
    one, two = row("single", 700), row("single", 740) | {"seed": 1}
    document = linf(one)
    document["rows"]["0.3/1/single"] = two
    assert "72.0 (70.0 to 74.0)" in rendered(linf_mnist=document)


def test_the_whole_of_autoattack_has_a_column_where_it_was_run(rendered: Any) -> None:
    one, best = row("single", 700), row("exact-corrective", 800, betas=(0.4, 1.1), last=850)
    assert "AutoAttack" not in rendered(linf_mnist=linf(one, best))
    best["ensemble"] |= {"apgd-t": rate(780), "autoattack": rate(770)}
    best["last_member"]["apgd-t"] = rate(840)
    page = rendered(linf_mnist=linf(one, best))
    assert "80.0 [78.0, 82.0] | 78.0 [76.0, 80.0] | 77.0 [75.0, 79.0] | 85.0 [83.0, 87.0] | 84.0" in page
    assert "| 70.0 [68.0, 72.0] |  |  |  |  | 1.00 |" in page, "the row without it"


def test_rows_of_another_machine_are_named(rendered: Any) -> None:
    rows = [row("single", 700), row("independent", 780), row("exact-corrective", 800, betas=(0.4, 1.1), last=850)]
    assert "Seconds compare" not in rendered(linf_mnist=linf(*rows))
    mixed = [rows[0] | {"processor": "one"}, rows[1] | {"processor": "other"}, rows[2] | {"processor": "one"}]
    assert "Machine: one, but `0.3/0/independent` on other. Seconds compare" in rendered(linf_mnist=linf(*mixed))


def test_time_and_budget_are_read_off_the_epochs(rendered: Any) -> None:
    found = row("single", 700)
    found["training"]["epochs"] = [
        {"seconds": 1.0, "cpu_seconds": seconds, "stage": 1, "robust_accuracy": accuracy}
        for seconds, accuracy in ((6.0, 0.4), (12.0, 0.65), (30.0, 0.62))
    ]
    page = rendered(linf_mnist=linf(found))
    assert "| the single row | 12 | 12 |  |  |  |" in page, "50 and 60 % after 12 seconds, 70 % never"
    assert "| the single row | 40.0 | 65.0 | 62.0 | 62.0 |" in page, "after 10, 20, 40 and 80 seconds"


def certified(name: Any, radii: Any, *, top: Any, betas: Any = (1.0,), n: Any = 100_000) -> Any:
    """A row of certified radii, one an image, with its ACR by the top-class bound."""
    found = row(name, 0, betas=betas) | {"sigma": 0.5}
    acr = sum(radii) / len(radii)
    measured = {"images": len(radii), "acr": acr, "acr_top_class": top, "acr_interval": [acr - 0.1, acr + 0.1]}
    measured |= {"accuracy": {"0": 1.0, "2": 0.0}, "radii": radii, "cpu_seconds": 3.0}
    return {f"0.5/0/{name}": found | {f"n={n}": measured}}


def test_published_figures_stand_beside_the_boosted_row_by_both_bounds(rendered: Any, tmp_path: Path) -> None:
    # Halves of halves, whose sums are exact: Python 3.12 adds floats in another way than 3.11.
    rows = certified("boosted", [1.875, 1.5625, 1.6875], top=1.66, betas=(0.6, 0.5))
    rows |= certified("single", [1.5, 1.375, 1.25], top=1.9)
    document: dict[str, Any] = {
        "benchmark": "l2_published",
        "published": {"0.5": {"SmoothAdv": 1.688}, "1": {"SmoothAdv": 9.0}},
    }
    document["every"] = 20
    page = rendered(l2_published={**document, "rows": rows})
    ours = "Boosted, two-class bound: 1.708 (95 % interval 1.608 to 1.808)"
    assert f"{ours}, at or above the published SmoothAdv figure of 1.688." in page
    assert "Boosted, top-class bound: 1.660, below the published SmoothAdv figure of 1.688." in page
    assert "9.000" not in page, "another sigma's figure"
    better = "Against the single row: better, +0.333 in ACR over the same images (standard error 0.075)"
    assert f"{better}, for 1.00 times its processor seconds." in page
    rows["0.5/0/single"]["processor"] = "another"
    page = rendered(l2_published={**document, "rows": rows})
    assert f"{better}, trained on another machine: costs do not compare." in page
    rendered(l2_long={**document, "benchmark": "l2_long", "rows": rows})
    assert (tmp_path / "plots" / "l2_long-0.5-100000.png").is_file()


def test_radii_published_image_by_image_are_compared_over_the_same_images(rendered: Any) -> None:
    network = json.loads((FOLDER / "published_radii.json").read_text())["networks"]["0.5"]
    # The largest radius that 100,000 samples can prove; the log rounds it up to 1.91.
    assert network["largest"] == pytest.approx(radius_top_class(clopper_pearson_lower(n := 100_000, n, 0.001), 0.5))
    assert max(network["radii"]) == 1.91
    published = [min(radius, network["largest"]) for radius in network["radii"]]
    assert len(published) == 500
    assert sum(published) / 500 == pytest.approx(1.667, abs=5e-4)
    # Every second image 0.02 better: +0.01, with standard error 0.01 / sqrt(499).
    rows = certified("boosted", [r + 0.02 * (i % 2) for i, r in enumerate(published)], top=1.6, betas=(0.6, 0.5))
    document: dict[str, Any] = {"benchmark": "l2_published", "published": {"0.5": {}}, "every": 20, "rows": rows}
    page = rendered(l2_published=document)
    assert "estimate for all test images" not in page, "without a figure for them"
    assert "The published log of one SmoothAdv network has ACR 1.666 on these very images." in page
    assert "two-class bound, against SmoothAdv over the same images: better, +0.0100 (standard error 0.0004)." in page
    assert "top-class bound, against SmoothAdv over the same images: -0.0669." in page
    page = rendered(l2_published=document | {"published": {"0.5": {"Gaussian": 1.5, "SmoothAdv": 1.688}}})
    # 1.688 + 0.01 - 0.002 for the log's rounding, give or take 1.96 times 0.00046; rounded down.
    assert "all test images, where SmoothAdv has 1.688, is 1.695 (95 % interval 1.695 to 1.696)." in page
    assert "these very images" not in rendered(l2_published=document | {"every": 10})


def test_fixed_radii_stand_beside_the_average_and_cost_is_drawn(rendered: Any, tmp_path: Path) -> None:
    rows = {}
    for budget, seconds in ((12, 100.0), (36, 300.0)):
        for kind in ("single", "boosted"):
            (found,) = certified(f"{kind}-{budget}", [0.5, 0.25, 0.0], top=0.2, n=1000).values()
            found |= {"kind": kind, "sigma": 0.25, "training": {"seconds": 9.0, "cpu_seconds": seconds, "epochs": []}}
            found["n=1000"]["accuracy"] = {"0": 2 / 3, "0.25": 2 / 3, "0.5": 1 / 3}
            rows[f"0.25/0/{kind}-{budget}"] = found
    page = rendered(cifar10_fast={"benchmark": "cifar10_fast", "every": 20, "rows": rows})
    assert "![ACR against training cost at sigma 0.25](../plots/cifar10_fast-0.25-1000-payoff.png)" in page
    assert (tmp_path / "plots" / "cifar10_fast-0.25-1000-payoff.png").stat().st_size > 10_000
    from benchmarks.lib.accuracy_answers import certified as answer

    _, table = answer({"cifar10_fast": {"rows": rows}})
    assert "| CIFAR-10, all images, 0.25, 1,000 | 0.250 [0.150, 0.350] | 66.7, 66.7 | +0.000 ± 0.000 |" in table
    _, words = answer({"cifar10_fast": {"rows": {key: row for key, row in rows.items() if row["kind"] == "single"}}})
    alone = "CIFAR-10, all images, 0.25, 1,000: the single-12 row, ACR 0.250 [0.150, 0.350]"
    assert f"Without a boosted rival: {alone}, certified at radius 0, sigma: 66.7, 66.7 %." in words


def test_published_figures_are_not_compared_with_fewer_samples(rendered: Any) -> None:
    rows = certified("boosted", [1.4, 1.5], top=1.45, betas=(0.6, 0.5), n=10_000)
    document: dict[str, Any] = {
        "benchmark": "l2_published",
        "published": {"0.5": {"SmoothAdv": 1.688}},
        "every": 20,
        "rows": rows,
    }
    page = rendered(l2_published=document)
    assert "ACR 1.450" in page
    assert "1.688." not in page


def noisy(name: Any, counts: Any, *, seed: Any = 0) -> Any:
    """A row that was measured under four noisy copies of each image."""
    right = sum(counts) / len(counts) / 4
    found = {"copies": 4, "images": len(counts), "right": right, "counts": counts}
    found["all_right"] = sum(count == 4 for count in counts) / len(counts)
    return row(name, 0) | {"sigma": 0.25, "seed": seed, "noise": found}


def test_rows_under_noise_are_paired_by_image_and_by_the_seeds_that_both_have(rendered: Any) -> None:
    rows = {
        "0.25/0/single": noisy("single", [4, 2, 0, 4]),
        "0.25/0/boosted": noisy("boosted", [4, 4, 0, 4]),
        "0.25/1/boosted": noisy("boosted", [0, 0, 0, 0], seed=1),  # without a rival: in the mean, in no difference
    }
    page = rendered(gtsrb_l2={"benchmark": "gtsrb_l2", "every": 10, "rows": rows})
    assert "under noise: 4 test images, 4 noisy copies of each" in page
    assert "| the single row | 1 | 5 | 0 | 62.5 |  | 50.0 |  |" in page
    same = "+12.50 ± 12.50, no significant difference"
    assert (
        f"| the boosted row | 1 | 5 | 0, 1 | 37.5 | {same} | 37.5 | +25.00 ± 25.00, no significant difference |" in page
    )


def test_several_seeds_widen_a_difference_by_how_far_their_trainings_differ() -> None:
    from benchmarks.lib.noise import difference

    ours = [noisy("boosted", [4, 2, 2, 4]), noisy("boosted", [4, 0, 0, 4], seed=1)]
    rival = [noisy("single", [4, 0, 2, 4]), noisy("single", [4, 0, 2, 4], seed=1), noisy("single", [4] * 4, seed=2)]
    mean, error = difference(ours, rival, "right")
    # Images: 0, 1/4, -1/4, 0 over the two seeds; seeds: +1/8 and -1/8, each the mean of four images.
    assert mean == 0
    assert error == pytest.approx(((1 / 24) / 4 + (1 / 32) / 2) ** 0.5)
    assert difference(ours[:1], rival, "right") == pytest.approx((1 / 8, 1 / 8)), "one seed: images alone"


def test_a_budget_stands_beside_one_member_of_its_cost_with_what_it_was_spent_on(rendered: Any) -> None:
    facts = {"data": "digits", "budget": 5, "operations": 200.0}
    slices = [{"kind": "member", "part": 1, "spent": 100.0, "deployed": True}]
    slices.append({"kind": "head", "part": 2, "spent": 200.0, "deployed": False})
    rows = {
        "digits/5/0/single": noisy("single", [4, 2, 0, 4, 0]) | facts,
        "digits/5/0/budget": noisy("budget", [4, 3, 1, 4, 1]) | facts | {"decisions": slices},
    }
    page = rendered(budget={"benchmark": "budget", "rows": rows})
    assert "digits, 5 epochs of one member: 200 operations, 5 test images" in page
    assert "| +15.00 ± 6.12, better |" in page
    assert "Seed 0, slices: member 1 to 50 %, head 2 to 100 % (not kept)." in page


def test_schedules_stand_beside_the_one_that_falls_over_all_epochs(rendered: Any) -> None:
    from benchmarks.lib.cost_answers import _schedules

    facts = {"data": "digits", "epochs": 10}
    rows = {
        "digits/10/0/cosine": noisy("cosine", [4, 2, 0, 4, 0]) | facts,
        "digits/10/0/decay": noisy("decay", [4, 3, 1, 4, 1]) | facts,
        "digits/10/0/constant": noisy("constant", [4, 2, 0, 3, 0]) | facts,
        "digits/20/0/decay": noisy("decay", [0, 0, 0, 0, 0]) | facts | {"epochs": 20},  # without a yardstick
    }
    page = rendered(schedules={"benchmark": "schedules", "rows": rows})
    assert "## digits, 10 epochs: 5 test images" in page
    assert "| +15.00 ± 6.12, better |" in page
    assert _schedules({"rows": rows}) == (
        " Schedules that can be cut anywhere, against a rate that falls over all epochs: decay: better in 1 of 1; "
        "constant: no significant difference in 1 of 1."
    )


def test_votes_are_spread_over_ranges(rendered: Any) -> None:
    rows = certified("boosted", [0.5, 0.5, 0.25, 0.0], top=0.3, n=1000)
    rows["0.5/0/boosted"]["n=1000"] |= {"n": 1000, "votes": [1000, 999, 500, 99]}
    page = rendered(l2_mnist={"benchmark": "l2_mnist", "every": 20, "rows": rows})
    assert "| training | p_A below 0.1 | 0.1 to 0.5 | 0.5 to 0.9 | 0.9 to 0.99 | 0.99 to 0.999 | 0.999 to 1 |" in page
    assert "| the boosted row | 25.0 | 0.0 | 25.0 | 0.0 | 0.0 | 25.0 | 25.0 |" in page


def test_candidates_for_a_recipe_are_sorted_by_held_out_accuracy(rendered: Any) -> None:
    def candidate(name: Any, robust: Any, seed: Any) -> Any:
        found = row(name, 0) | {"norm": "linf", "robust": rate(robust), "seed": seed}
        return {f"{name}/{seed}": found}

    rows = candidate("worse", 700, 1) | candidate("better", 780, 1) | candidate("better", 740, 2)
    page = rendered(digits_forms={"held_out_images": 360, "rows": rows})
    assert page.index("| the better row | 2 | 5 | 76.0 (74.0 to 78.0) |") < page.index("| the worse row |")


def test_forms_are_sorted_by_held_out_radius_beside_that_of_training_images(rendered: Any) -> None:
    rows = {name: row(name, 0) | {"sigma": 0.5, "acr": acr} for name, acr in (("worse", 0.8), ("better", 1.0))}
    rows["better"]["training_acr"] = 1.05
    page = rendered(l2_forms={"held_out_images": 200, "n": 1000, "rows": rows})
    assert page.index("| the better row | 2 | 5 | 1.000 | 1.050 |") < page.index("| the worse row | 2 | 5 | 0.800 |  |")


def test_steps_and_costs_are_drawn(rendered: Any, tmp_path: Path) -> None:
    step = {"step": "engine", "seconds per image": 2.0, "times the published loop": 3.0}
    sweeps = {name: [{name: 1, "seconds": 0.5}, {name: 2, "seconds": 1.0}] for name in ("members", "n")}
    page = rendered(
        question_speed={"results": {"steps": [{**step, "step": "published loop"}, step]}},
        certify_cost={"results": {"sweeps": sweeps}},
    )
    assert "| engine | 2 | 3 |" in page
    for name in ("steps", "cost"):
        assert f"(../plots/{name}.png)" in page
        assert (tmp_path / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_operations_are_a_table_a_plot_and_a_verdict(rendered: Any, tmp_path: Path) -> None:
    def file(name: str, kind: str, radii: list[float], *, asked: float, macs: float) -> Any:
        found = {"name": name, "file": kind, "radii": radii, "acr": sum(radii) / len(radii), "alpha": 0.001, "n": 1000}
        return found | {"members_asked": asked, "members": 1 if name == "single" else 2, "macs_per_sample": macs}

    rows = [
        file("single", "plain", [0.0, 0.2, 0.3, 0.3], asked=1.0, macs=30e6),
        file("single", "int8", [0.0, 0.1, 0.3, 0.3], asked=1.0, macs=30e6),
        file("independent", "plain", [0.1, 0.2, 0.3, 0.4], asked=2.0, macs=60e6),
        file("independent", "cascade", [0.1, 0.2, 0.3, 0.4], asked=1.25, macs=37.5e6),
    ]
    named = {f"{row['name']}/{row['file']}": row for row in rows}
    page = rendered(operations={"n": 1000, "sigma": 0.25, "rows": named})
    # A difference of 1.73 standard errors is none; of two files with the same ACR the cheaper is named.
    verdict = next(line for line in page.splitlines() if line.startswith("**On traffic signs"))
    assert "n = 1,000, no file is significantly better than every cheaper one. The largest ACR is that of" in verdict
    assert "independent members, cascade (37.5 GMAC, ACR 0.250): +0.0500 ± 0.0289 from one network, plain." in verdict
    assert "cascade of independent members asks 1.25 of 2 members, +0.0000 ± 0.0000" in page
    assert "| one network | int8 | 1.00 of 1 | 30.0 | 30.0 | 75.0 | 50.0 | 50.0 | 0.175 | -0.0250 ± 0.0250 |" in page
    assert "Not measured yet: a wider one, boosted members, heads on one trunk, a distilled student." in page
    assert (tmp_path / "plots" / "operations.png").read_bytes().startswith(b"\x89PNG")
    named["independent/cascade"] |= {"radii": [0.1, 0.3, 0.4, 0.5], "acr": 0.325}
    page = rendered(operations={"n": 1000, "sigma": 0.25, "rows": named})
    verdict = next(line for line in page.splitlines() if line.startswith("**On traffic signs"))
    assert verdict == (
        "**On traffic signs, n = 1,000, these are significantly better than every file that costs less: independent "
        "members, cascade (37.5 GMAC, ACR 0.325).**"
    )
    del named["single/int8"], named["independent/cascade"]
    page = rendered(operations={"n": 1000, "sigma": 0.25, "rows": named})
    assert "no file is significantly better than a cheaper one." in page


def test_the_claims_on_cheap_samples_hold_up_to_so_many_members_asked() -> None:
    """Seconds per sample grow by 0.2 per member asked, from 0.2 of one to 1.0 of five."""
    from benchmarks.lib.cost_answers import _asked

    rates = [{"file": "cascade int8", "members asked": 1.0, "samples per second": 5.0}]
    rates.append({"file": "int8", "members asked": 5.0, "samples per second": 1.0})
    claims = [
        {"claim": "loop", "value": 15.0, "at least": 12.0},
        {"claim": "operations", "value": 200.0, "at least": 100.0},
        {"claim": "decided", "value": 900.0, "at least": 600.0},
    ]
    results: dict[str, Any] = {"rates": rates, "claims": claims, "decided": [{}, {"seconds": 40.0, "samples": 100.0}]}
    words = _asked(results)
    assert "asks 1.00 of five members, as it does of five ResNet-20 trained on digits" in words
    # A quarter more than 0.2 seconds, and half as much again as 0.4.
    assert "the factor of 12 holds up to 1.25 members per sample, that of 600 for a decided radius up to 2.00." in words
    claim = {"claim": "trained cascade, margin, 0.995: ACR lost, %", "at most": 1.0, "holds": False}
    rows: list[dict[str, Any]] = [
        {"rule": rule, "members asked": asked, "ACR minus plain": -lost / 200, "ACR lost, %": lost}
        for rule, asked, lost in (("plain", 5, 0.0), ("margin, 0.995", 1.01, 1.6), ("margin, 0.999", 1.03, 0.8))
    ]
    found = {"claims": [claim], "facts": {"images": 360}, "rules": [row | {"standard error": 0.001} for row in rows]}
    assert _asked(results | {"certified": found}).endswith(
        "On 360 test images those five ask 1.01 members for -0.0080 ± 0.0010 of ACR (-1.6 %) by margin, 0.995; 1.03 "
        "members for -0.0040 ± 0.0010 of ACR (-0.8 %) by margin, 0.999."
    )
    claim["holds"] = True
    assert _asked(results | {"certified": found}).endswith("(-1.6 %) by margin, 0.995.")


def test_claims_of_other_scripts_are_found_wherever_they_are(rendered: Any) -> None:
    claim = {"claim": "times faster", "value": 4.5, "at least": 4.0, "holds": True}
    failed = {"claim": "MB", "value": 700.0, "at most": 600, "holds": False}
    record = {
        "environment": {"cores": 2},
        "results": {"small CNN": {"claims": [claim]}, "ResNet": {"claims": [failed]}},
    }
    page = rendered(certify_speed=record)
    assert "| small CNN | times faster | 4.5 | at least 4 | yes |" in page
    assert "| ResNet | MB | 700 | at most 600 | **no** |" in page


def test_heads_are_compared_with_whole_members_by_what_they_gain_over_the_first() -> None:
    from benchmarks.lib.accuracy_answers import _heads

    counts = {"first": [5, 5], "whole": [10, 10], "split-2-0": [9, 5], "split-2-1": [9, 7]}
    rows = {
        f"0/{name}": {"name": name, "label": name, "seed": 0, "mmac": 10, "noise": {"copies": 10, "counts": found}}
        for name, found in counts.items()
    }
    assert _heads({"held_out_images": 2, "rows": rows}) == (
        " On 2 held-out traffic signs under noise, beside the first member alone: whole: +50.0 ± 0.0 points at 10 MMAC "
        "per sample; best heads (split-2-1: +30.0 ± 10.0 points at 10 MMAC per sample)."
    )
