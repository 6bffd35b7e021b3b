"""Training curves as pictures of a page."""

from __future__ import annotations

import re

from tyler.lens.curves import INK, panels, series, smoothed, svg

METRICS = [
    {"step": 0, "calibration/elsewhere": 0.01},
    *(
        {
            "step": step,
            "stage2/reward": 0.1 * step,
            "stage2/success": 0.5,
            "stage2/invocations": 5.0 - step,
            "stage2/invocations_global": 1.0,
            "stage2/invocations_state": 4.0 - step,
            "greedy/accuracy": 0.3 if step == 2 else None,
        }
        for step in range(1, 5)
    ),
]


def test_a_series_is_where_the_metric_was_logged() -> None:
    assert series(METRICS, "stage2/reward") == ([1, 2, 3, 4], [0.1, 0.2, 0.1 * 3, 0.4])
    assert series(METRICS, "greedy/accuracy") == ([2], [0.3])
    assert series(METRICS, "stage2/nothing") == ([], [])


def test_reward_and_success_are_apart_and_only_what_was_logged_is_drawn() -> None:
    found = {panel.title: [curve.key for curve in panel.curves] for panel in panels(METRICS, 5)}
    assert found == {
        "Reward": ["stage2/reward"],
        "Success": ["stage2/success", "greedy/accuracy"],
        "Invocations, sampled": ["stage2/invocations", "stage2/invocations_global", "stage2/invocations_state"],
    }
    assert panels([]) == []


def test_every_loop_has_its_curves() -> None:
    for prefix in ("stage1", "sft", "softcot", "memgen_weaver"):
        logged = [{"step": 1, f"{prefix}/loss": 1.0, f"{prefix}/gradient_norm": 2.0, f"{prefix}/learning_rate": 0.1}]
        assert [panel.title for panel in panels(logged)] == [
            "Loss on traces",
            "Gradient norm before clipping",
            "Learning rate",
        ]
    memgen = panels([{"step": 1, "memgen_grpo/reward": 0.5, "memgen_grpo/insertions": 2.0, "memgen_grpo/loss": 0.1}])
    assert [panel.title for panel in memgen] == ["Reward", "Blocks after delimiters", "Objective"]


def test_a_smoothed_curve_keeps_a_straight_line_and_its_band_holds_the_middle() -> None:
    middle, low, high = smoothed([float(n) for n in range(100)])
    assert middle[2:-2] == [float(n) for n in range(2, 98)]
    assert all(a <= b <= c for a, b, c in zip(low, middle, high, strict=True))


def test_a_drawing_for_a_page_has_the_ink_of_the_page_and_the_colours_of_operators() -> None:
    panel = panels(METRICS, 5)[2]
    drawn = svg(panel, {"": METRICS})
    assert drawn.startswith('<svg aria-hidden="true"') and "currentColor" in drawn and INK not in drawn
    assert "#007abf" in drawn and "#c15500" in drawn and "budget 5" in drawn
    both = svg(panels(METRICS)[0], {"first": METRICS, "second": METRICS})
    assert ">first<" in both and ">second<" in both
    ids = set(re.findall(r' id="([^"]+)"', drawn))
    assert ids.isdisjoint(re.findall(r' id="([^"]+)"', both)), "two drawings of one page share no id"
    assert all(reference in ids for reference in re.findall(r"url\(#([^)]+)\)", drawn))


def test_an_axis_of_shares_shows_all_of_them() -> None:
    """0.825 to 1.000 must not fill the plot."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from tyler.lens.curves import _draw

    narrow = [{"step": step, "stage2/success": 0.9 + 0.001 * step} for step in range(1, 9)]
    figure, axes = pyplot.subplots()
    _draw(axes, panels(narrow)[0], {"": narrow})
    low, high = axes.get_ylim()
    pyplot.close(figure)
    assert low <= 0 and high >= 1
