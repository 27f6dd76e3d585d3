"""What the records say about cost and trust: samples, seconds, files, serving, training, certificates that hold."""

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from benchmarks.lib.details import Document
from benchmarks.lib.noise import difference
from benchmarks.lib.outcomes import Records, claims, tally
from benchmarks.lib.tables import grouped, markdown
from benchmarks.lib.verdicts import word

__all__ = ["exported", "samples", "serving", "speed", "training", "trust", "wrapping"]

_NEARLY_ZERO = 0.001  # the radius that asks whether there is a certificate at all


def samples(records: Records) -> tuple[str, str]:
    """What fewer samples cost."""
    found = claims(records["sample_economy"], "two-class", "claims")
    fewer, lost = (found[f"radius: {key}, on average"] for key in ("times fewer samples", "points lost"))
    tolerance, radius_lost = (found[f"tolerance 0.05: {key}"] for key in ("times fewer samples", "mean radius lost"))
    decisions = records["sample_economy"]["results"]["two-class"]["decisions"]
    larger = [row for row in decisions if row["radius"] > _NEARLY_ZERO]
    whole, used = larger[0]["times_fewer"] * larger[0]["mean_samples"], fmean(row["mean_samples"] for row in larger)
    lost_there = fmean(row["points_lost"] for row in larger)
    gains = records["bound_choice"]["results"]["runner-up 0.6"]["100000"]
    bound = gains["split, two-class"] / gains["split, top-class"] - 1
    verdict = (
        f"Deciding one radius takes {fewer:.0f} times fewer samples than n = 100,000 and loses {lost:.2f} points of "
        f"certified accuracy; a tolerance of 0.05 takes {tolerance:.1f} times fewer and loses {radius_lost:.3f} of "
        "radius on average."
    )
    return verdict, (
        f"Means over {len(decisions)} pairs of sigma and radius; over the {len(larger)} with radii above "
        f"{_NEARLY_ZERO:g} it is {whole / used:.0f} times fewer, and {lost_there:.2f} points lost. "
        f"The two-class bound gives {bound:.1%} more radius than the top-class bound at n = 100,000. Simulated on "
        "images like those of the published CIFAR-10 networks.\n"
    )


def speed(records: Records) -> tuple[str, str]:
    """How fast certificates are."""
    lines = []
    for graph, found in records["certify_speed"]["results"].items():
        claims = {claim["claim"]: claim["value"] for claim in found["claims"]}
        rate, memory = found["samples_per_second"]["c"], found["memory"]["peak_mb"]
        cells = [f"{rate:,.0f}", f"{claims['(c)/(b)']:.0%}", f"{claims['(c)/(a)']:.1f}", f"{memory:.0f}"]
        lines.append([graph, *cells])
    header = ["model", "samples per second", "of the engine alone", "times the published loop", "MB at n = 100,000"]
    steps = {step["step"]: step for step in records["question_speed"]["results"]["steps"]}
    named = {"the same n": "batching", "tolerance 0.05": "tolerance 0.05", "radius 0.25": "radius 0.25"}
    shown = ", ".join(f"{steps[step]['times the published loop']:.3g} ({name})" for name, step in named.items())
    verdict = f"On digits, {shown} times as fast as the published loop of n = 100,000, all on two cores."
    return verdict, markdown(header, lines)


def exported(records: Records) -> tuple[str, str]:
    """The exported file beside eager torch, and what importing costs."""
    found = records["export_speed"]["results"]
    batches = {row["batch"]: row["times_faster"] for row in found["batches"]}
    shown = ", ".join(f"{batches[batch]:.1f} (batch {batch})" for batch in (1, 32, 256) if batch in batches)
    best = found["best_seconds_per_image"]
    added = found["sampler"]["added"]["8-bit"]
    verdict = f"5 x ResNet-20 as one ONNX file is {shown} times as fast as eager torch; "
    verdict += f"{best['eager'] / best['onnx']:.1f} times with each at its own best batch."
    seconds = records["import_time"]["results"]["seconds"]["robustinfer"]["wall"]
    return verdict, (
        f"The in-graph sampler adds {added:.0%} to the time of a sample. `import robustinfer` takes "
        f"{1000 * seconds:.0f} ms.{_cheaper(records)}\n"
    )


def _cheaper(records: Records) -> str:
    """What int8, heads and cascades gain over the plain file, and what cascades of trained members lose."""
    words = ""
    if record := records.get("cheap_samples"):
        rows = {row["file"]: row for row in record["results"]["rates"]}
        named = {"int8": "int8", "five heads on one trunk": "heads", "a cascade": "cascade", "both": "cascade int8"}
        named["all three"] = "heads cascade int8"
        shown = ", ".join(f"{rows[file]['times the plain file']:.1f} ({name})" for name, file in named.items())
        loop, decided = rows["cascade int8"]["times the published loop"], record["results"]["claims"][2]["value"]
        words += f" Samples per second beside the plain file: {shown} times; cascade and int8 together give {loop:.0f} "
        words += f"times the published loop, and a radius is decided {decided:.0f} times faster. "
        words += _asked(record["results"])
    if record := records.get("cascade_rules"):
        rule = record["results"]["claims"][0]["claim"].partition(":")[0]  # the default
        default = next(row for row in record["results"]["rules"] if row["rule"] == rule)
        words += f" A cascade of five members of digits asks {default['members asked']:.2f} of them per sample, "
        words += f"for {default['ACR minus plain']:+.4f} ± {default['standard error']:.4f} of ACR."
    return words


def _asked(results: Mapping[str, Any]) -> str:
    """Whose members agree so well that this holds, up to how many members asked it would, and what they lose."""
    rows = {row["file"]: row for row in results["rates"]}
    cascade, everyone = rows["cascade int8"], rows["int8"]
    seconds, all_seconds = (1 / row["samples per second"] for row in (cascade, everyone))
    asked = cascade["members asked"]
    each = (all_seconds - seconds) / (everyone["members asked"] - asked)
    faster, _, sooner = results["claims"]
    decision = results["decided"][1]["seconds"] / results["decided"][1]["samples"]
    up_to = [
        asked + (claim["value"] / claim["at least"] - 1) * sample / each
        for claim, sample in ((faster, seconds), (sooner, decision))
    ]
    most = [math.floor(100 * members) / 100 for members in up_to]
    words = (
        f"That is where a cascade asks {asked:.2f} of five members, as it does of five ResNet-20 trained on digits. "
        f"Interpolated linearly to int8, which asks all members, the factor of {faster['at least']:g} holds up to "
        f"{most[0]:.2f} members per sample, that of {sooner['at least']:g} for a decided radius up to {most[1]:.2f}."
    )
    if not (found := results.get("certified")):
        return words
    claim = found["claims"][0]
    kept = {row["rule"]: row for row in found["rules"] if row["members asked"] < 5}
    chosen = [kept[claim["claim"].removeprefix("trained cascade, ").partition(":")[0]]]
    if not claim["holds"]:  # which rule loses as little as was asked for, and asks the fewest members
        enough = [row for row in kept.values() if row["ACR lost, %"] <= claim["at most"]]
        chosen += sorted(enough, key=lambda row: float(row["members asked"]))[:1]
    shown = "; ".join(
        f"{row['members asked']:.2f} members for {row['ACR minus plain']:+.4f} ± {row['standard error']:.4f} of ACR "
        f"({-row['ACR lost, %']:+.1f} %) by {row['rule']}"
        for row in chosen
    )
    return f"{words} On {found['facts']['images']} test images those five ask {shown}."


def wrapping(records: Records) -> tuple[str, str]:
    """Wrapped classifiers beside their own pipelines."""
    rows = records["wrapped"]["results"]["rows"]
    same, images = (sum(row[key] for row in rows.values()) for key in ("same_label", "images"))
    verdict = f"The label is the same on {same:,} of {images:,} photographs, over {len(rows)} published classifiers."
    kept = "; ".join(f"{name}: {100 * row['labels_kept_under_noise']:.0f} %" for name, row in rows.items())
    difference = max(row["score_difference"] for row in rows.values())
    return verdict, (
        f"Scores differ by {difference:.1g} at most. None was trained with noise; noise of sigma 0.25 leaves these "
        f"shares of the labels unchanged: {kept}.\n"
    )


def serving(records: Records) -> tuple[str, str]:
    """What HTTP costs."""
    document = records["serving_load"]
    asgi, torchserve = (document["engines"][engine] for engine in ("asgi", "torchserve"))

    def pair(key: str, form: str) -> str:
        return f"{asgi['found'][key]:{form}} ({torchserve['found'][key]:{form}})"

    verdict = (
        f"With {document['clients']} clients, the asgi engine (TorchServe) reaches {pair('certify_ratio', '.0%')} of "
        f"the speed inside the process with certificates, {pair('predict_ratio', '.0%')} with predictions of n = 100."
    )
    return verdict, (
        f"A lone prediction takes {pair('lone_predict_extra_ms', '.1f')} ms more than a call "
        f"(median {asgi['lone_predict']['http_p50_ms']:.1f} ms, "
        f"99th percentile {asgi['lone_predict']['http_p99_ms']:.1f} ms).{_most(asgi['predict'])}\n"
    )


def _most(predict: Mapping[str, Any]) -> str:
    """What the ratio of predictions could be at most, where clients and server share the cores."""
    if "ratio_at_most" not in predict:
        return ""
    return (
        f" A prediction takes {predict['in_process_processor_ms']:.1f} ms of processor time in the process and "
        f"{predict['http_processor_ms']:.1f} ms over HTTP, with the client's share; cores that are never idle would "
        f"reach {predict['ratio_at_most']:.0%}."
    )


def training(records: Records) -> tuple[str, str]:
    """What a training step costs."""
    steps = claims(records["training_step"], "verdicts")
    ratios = ", ".join(f"{value:.2f} (`{claim.partition(':')[0]}`)" for claim, value in steps.items())
    memory = claims(records["training_memory"], "verdicts").values()
    shares = records["augmented_offsets"]["results"]["shares"][0]
    return f"A step takes {ratios} times the forward and backward passes it cannot do without.", (
        f"Keeping freed memory saves {1 - max(memory):.0%} to {1 - min(memory):.0%} of a step. With augmentation a "
        f"cached offset would label {shares['labelled otherwise']:.0%} of the images differently: it is not cached."
        f"{_first(records['first_model']) if 'first_model' in records else ''}"
        f"{_budgets(records['budget']) if 'budget' in records else ''}"
        f"{_schedules(records['schedules']) if 'schedules' in records else ''}\n"
    )


def _first(document: Document) -> str:
    """How long it takes to have a model served, and how good it then is."""
    found, right = document["results"], document["results"]["under noise"]["right"]
    minutes, cores = found["claims"][0]["value"], document["environment"]["cores"]
    return (
        f" From nothing to a served model of traffic signs takes {minutes:.0f} minutes on {cores} cores; it is right "
        f"on {100 * right:.1f} % of noisy copies at sigma {found['sigma']:g}."
    )


def _budgets(document: Document) -> str:
    """A budgeted training beside one member of the same cost, under noise, for each data set and budget."""
    outcomes: dict[str, list[str]] = {"single": [], "decay": []}
    for found in grouped(document["rows"], "data", "budget").values():
        ours = [row for row in found if row["name"] == "budget"]
        for name, words in outcomes.items():
            rival = [row for row in found if row["name"] == name]
            if {row["seed"] for row in ours} & {row["seed"] for row in rival}:
                words.append(word(*difference(ours, rival, "right")))
    rivals = {"single": "with a rate that falls throughout", "decay": "with a decay over the last quarter"}
    shown = "; ".join(f"{rivals[name]}, {tally(words)}" for name, words in outcomes.items() if words)
    return f" A budget spent by decisions on held-out images, beside one member of the same operations: {shown}."


def _schedules(document: Document) -> str:
    """Schedules that can be cut anywhere beside one that falls over all epochs, under noise, by set and length."""
    outcomes: dict[str, list[str]] = {}
    trained = grouped(document["rows"], "data", "epochs", "name")
    for (data, epochs, name), rows in trained.items():
        yardstick = trained.get((data, epochs, "cosine"), [])
        if name != "cosine" and {row["seed"] for row in rows} & {row["seed"] for row in yardstick}:
            outcomes.setdefault(name, []).append(word(*difference(rows, yardstick, "right")))
    shown = "; ".join(f"{name}: {tally(words)}" for name, words in outcomes.items())
    return f" Schedules that can be cut anywhere, against a rate that falls over all epochs: {shown}."


def trust(records: Records) -> tuple[str, str]:
    """Certificates of known truth, and processes that were killed."""
    sound = {claim["claim"]: claim["value"] for claim in records["soundness"]["results"]["claims"]}
    share = next(value for claim, value in sound.items() if claim.startswith("largest share"))
    alpha = next(claim for claim in sound if claim.startswith("largest share")).rpartition("= ")[2]
    killed = {claim["claim"]: claim["value"] for claim in records["kills"]["results"]["claims"]}
    verdict = (
        f"Of {sound['certificates']:,.0f} certificates on classifiers of known truth, no group has significantly more "
        f"false ones than alpha = {alpha} allows (the largest share is {share:.2%}). {killed['kills']:,} kills of "
        "training, certification, export and distillation lost and changed nothing."
    )
    if killed["rounds that lost or changed anything"]:
        verdict = "Something was lost or changed when processes were killed: see the details."
    cost = records["domain_speed"]["results"]
    figures = "; ".join(
        f"{graph}: {next(claim['value'] for claim in found['claims'] if claim['claim'] == '16-bit / 8-bit'):.0%}"
        for graph, found in cost.items()
    )
    return (
        verdict,
        f"Floating images, certified in the 16-bit domain, reach this share of uint8's speed: {figures}.\n",
    )
