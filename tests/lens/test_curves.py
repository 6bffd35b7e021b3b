"""Training curves as pictures of a page."""

import base64

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from tyler.lens.curves import draw, panels, picture, plot, series

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
    found = {panel.title: [*panel.keys] for panel in panels(METRICS, 5)}
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


def test_a_smoothed_curve_keeps_a_straight_line_and_shows_its_steps() -> None:
    figure, axes = pyplot.subplots()
    plot(axes, range(100), [float(n) for n in range(100)], now_and_then=False)
    steps, means = (list(line.get_ydata()) for line in axes.lines)
    pyplot.close(figure)
    assert steps == [*range(100)] and means[2:-2] == [*range(2, 98)]


def drawn(address: str) -> str:
    return base64.b64decode(address.removeprefix("data:image/svg+xml;base64,")).decode()


def test_a_picture_has_the_colours_of_operators_and_the_names_of_runs() -> None:
    svg = drawn(picture(panels(METRICS, 5)[2], {"": METRICS}))
    assert "#007abf" in svg and "#c15500" in svg and "budget 5" in svg
    both = drawn(picture(panels(METRICS)[0], {"first": METRICS, "second": METRICS}))
    assert ">first<" in both and ">second<" in both


def test_an_axis_of_shares_shows_all_of_them() -> None:
    """0.825 to 1.000 must not fill the plot."""
    narrow = [{"step": step, "stage2/success": 0.9 + 0.001 * step} for step in range(1, 9)]
    figure, axes = pyplot.subplots()
    draw(axes, panels(narrow)[0], {"": narrow})
    low, high = axes.get_ylim()
    pyplot.close(figure)
    assert low <= 0 and high >= 1
