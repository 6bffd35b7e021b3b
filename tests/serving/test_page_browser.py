"""The page in Chromium, with the network off: what a person sees, hears and presses.

Needs the extra `browser` and a Chromium at /usr/bin/chromium (`apt-get install chromium`) or at $TYLER_CHROMIUM.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.serving.served import NAME, Served, serving

from tyler.model import Tyler
from tyler.reasoners.tyler import TylerReasoner

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'path/to/tyler[browser]'")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the extra browser")
Browser, Page, Request, Route = playwright.Browser, playwright.Page, playwright.Request, playwright.Route
expect = playwright.expect

CHROMIUM = Path(os.environ.get("TYLER_CHROMIUM", "/usr/bin/chromium"))
if not CHROMIUM.exists():
    pytest.skip(f"needs {CHROMIUM}: apt-get install chromium, or set TYLER_CHROMIUM", allow_module_level=True)

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)  # fmt: skip
QUESTION = "Tom has 50 cups. Tom sells 24. Tom gets 33. How many cups are left?"
ANSWER = "Step 1: $50 - 24 = 26$\n\nStep 2: $26 + 33 = 59$\n\nThe answer is"


@pytest.fixture(scope="module")
def mini() -> Iterator[Served]:
    with serving(Tyler.from_pretrained("mini-tyler"), max_new_tokens=128) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        yield browser
        browser.close()


Open = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """Opens pages; none of them may ask another host for anything, or write an error to the console."""
    contexts, faults = [], list[str]()

    def visit(url: str, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        context.set_default_timeout(20_000)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda one: faults.append(one.url) if elsewhere(one, url) else None)
        page.on("console", lambda line: faults.append(line.text) if is_fault(line.text, line.type) else None)
        page.goto(url)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert faults == []


def elsewhere(request: Request, url: str) -> bool:
    return not request.url.startswith((url, "data:", "blob:", "file:"))


def is_fault(text: str, kind: str) -> bool:
    """An error, but for those that the browser writes about a status which the page handles."""
    return kind in ("error", "warning") and "Failed to load resource" not in text


def ask(page: Page, question: str = QUESTION) -> None:
    page.get_by_label("Ask a question").fill(question)
    page.get_by_role("button", name="Ask", exact=True).click()


def finished(page: Page, count: int = 1) -> None:
    """Wait until so many answers have ended."""
    expect(page.locator(".answer .facts:not(:empty)")).to_have_count(count, timeout=120_000)


def visible_text(page: Page, number: int = 0) -> str:
    """An answer's text without its blocks."""
    written = """all => all.map(one => {
      const copy = one.cloneNode(true);
      copy.querySelectorAll(".math").forEach(formula => formula.replaceWith(formula.title));
      return copy.textContent;
    }).join("")"""
    return str(page.locator(".answer").nth(number).locator(".text .token").evaluate_all(written))


def test_a_question_is_answered_with_its_operators_in_place(mini: Served, opened: Open) -> None:
    page = opened(mini.url)
    expect(page).to_have_title(f"{NAME}, Tyler")
    ask(page)
    finished(page)
    assert visible_text(page) == ANSWER + " $\\boxed{59}$"
    assert page.locator(".text math").count() == 3, "its formulas are typeset"
    blocks = page.locator(".text > *").evaluate_all("all => all.map(one => one.className)")
    assert [place for place, kind in enumerate(blocks) if kind == "chip"][:1] == [0]
    first, last = page.locator(".chip").all()
    assert first.get_attribute("aria-label") == "Operator global, 8 latents, after 0 tokens"
    assert [first.get_attribute("data-shape"), last.get_attribute("data-shape")] == ["circle", "triangle"]
    assert first.evaluate("one => getComputedStyle(one).backgroundColor") == "rgb(0, 122, 191)"
    expect(page.get_by_role("meter")).to_have_attribute("aria-valuetext", "2 calls")
    expect(page.get_by_role("status")).to_contain_text("38 tokens · 12 latents · ended by itself")


def test_tokens_are_shown_while_they_arrive_and_stop_ends_the_answer(served: Served, opened: Open) -> None:
    engine = served.service.servable.model.shared_engine
    step = engine._step

    def slowly() -> None:
        time.sleep(0.05)
        step()

    engine._step = slowly  # type: ignore[method-assign]
    try:
        page = opened(served.url)
        ask(page, "x")
        expect(page.locator(".text .token").nth(3)).to_be_attached()
        expect(page.locator(".text")).to_have_attribute("aria-busy", "true")
        page.keyboard.press("Escape")
        expect(page.locator(".answer .status")).to_have_text("Stopped here.")
        expect(page.locator(".text")).to_have_attribute("aria-busy", "false")
        expect(page.get_by_role("button", name="Stop")).to_have_count(0)
        assert 3 < page.locator(".text > *").count() < 64
        served.wait_until_idle()
    finally:
        del engine._step


def test_the_ribbon_tells_each_step_to_the_pointer_and_to_the_keyboard(mini: Served, opened: Open) -> None:
    page = opened(mini.url)
    ask(page)
    finished(page)
    ribbon = page.get_by_role("slider", name="Probability of an operator at each step")
    ribbon.focus()
    page.keyboard.press("Home")
    expect(ribbon).to_have_attribute(
        "aria-valuetext", re.compile(r"^Step 1, global: global 9\d%, state .*, procedure ")
    )
    page.keyboard.press("ArrowRight")
    expect(ribbon).to_have_attribute("aria-valuetext", re.compile(r"^Step 2, “Step”: "))
    expect(page.locator(".text .pointed")).to_have_text("Step")
    page.keyboard.press("End")
    expect(ribbon).to_have_attribute("aria-valuetext", re.compile(r"^Step 40, the end: "))
    expect(page.locator(".chart rect.made")).to_have_count(2)


def test_two_settings_stand_side_by_side_and_the_step_where_they_part_is_marked(mini: Served, opened: Open) -> None:
    page = opened(mini.url)
    page.get_by_label("Ask twice").check()
    budget = page.get_by_role("group", name="B").get_by_label("Budget")
    budget.focus()
    page.keyboard.press("Home")
    expect(budget).to_have_attribute("aria-valuetext", "0 calls")
    ask(page)
    finished(page, 2)
    expect(page.get_by_role("article")).to_have_count(2)
    expect(page.get_by_role("meter").nth(1)).to_have_attribute("aria-valuetext", "0 of 0 calls")
    expect(page.locator(".answer").nth(1).locator(".status")).to_have_text("It differs from the first step on.")
    boxes = [page.get_by_role("article").nth(place).bounding_box() for place in range(2)]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]


@pytest.mark.parametrize(
    "budget, last, most", [(None, "no limit", "no limit"), (2, "2 calls", "10 calls"), (30, "30 calls", "30 calls")]
)
def test_the_budget_can_be_what_the_server_is_asked_for(budget: int | None, last: str, most: str, opened: Open) -> None:
    with serving(TylerReasoner(NAME, Tyler.from_pretrained("mini-tyler"), budget=budget)) as served:
        page = opened(served.url)
        page.get_by_label("Ask twice").check()
        other = page.get_by_role("group", name="B").get_by_label("Budget")
        expect(other).to_have_attribute("aria-valuetext", "0 calls")
        slider = page.get_by_role("group", name="A").get_by_label("Budget")
        expect(slider).to_have_attribute("aria-valuetext", last)
        slider.focus()
        page.keyboard.press("End")
        expect(slider).to_have_attribute("aria-valuetext", most)
        ask(page)
        finished(page, 2)
        told = re.compile(r"^\d calls?$" if budget is None else rf"^\d of {most}$")
        expect(page.get_by_role("meter").nth(0)).to_have_attribute("aria-valuetext", told)


def test_an_answer_is_replayed_without_one_call(mini: Served, opened: Open) -> None:
    page = opened(mini.url)
    ask(page)
    finished(page)
    page.locator(".chip").nth(1).click()
    page.get_by_role("button", name="Replay without this call").click()
    finished(page, 2)
    branch = page.get_by_role("article", name="Without procedure at 31")
    assert branch.locator(".chip").first.text_content() == "global ×8"
    assert visible_text(page, 1).startswith(ANSWER)
    expect(branch.locator(".status")).to_contain_text("The same for the first 32 steps")
    expect(branch.locator(".fork")).to_have_count(1)


def test_the_lens_opens_on_a_block_and_escape_closes_it(mini: Served, opened: Open) -> None:
    page = opened(mini.url)
    ask(page)
    finished(page)
    chip = page.locator(".chip").first
    chip.focus()
    page.keyboard.press("Enter")
    expect(chip).to_have_attribute("aria-expanded", "true")
    page.get_by_role("button", name="Operator lens").click()
    lens = page.get_by_role("region", name="Lens on global")
    expect(lens.get_by_role("row")).to_have_count(1 + 8 + 1 + 7)
    expect(lens.get_by_role("row", name="no block at all")).to_contain_text("0.4")
    page.get_by_role("button", name="Close").focus()
    page.keyboard.press("Escape")
    expect(lens).to_have_count(0)
    expect(chip).to_be_focused()


def saved(page: Page, name: str, folder: Path) -> Path:
    with page.expect_download() as download:
        page.get_by_role("button", name=name).click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_an_answer_is_saved_and_opens_without_a_server(mini: Served, opened: Open, tmp_path: Path) -> None:
    page = opened(mini.url)
    ask(page)
    finished(page)
    page.locator(".chip").first.click()
    page.get_by_role("button", name="Operator lens").click()
    expect(page.locator(".lens")).to_have_count(1)
    html = saved(page, "Save as HTML", tmp_path)
    alone = opened(html.as_uri(), offline=True)
    expect(alone.get_by_role("heading", level=1)).to_have_text(QUESTION)
    assert visible_text(alone) == visible_text(page)
    assert alone.locator(".chart rect").count() == page.locator(".chart rect").count()
    alone.locator(".chip").first.click()
    expect(alone.get_by_role("region", name="Lens on global")).to_be_visible()
    expect(alone.get_by_role("button", name="Replay without this call")).to_have_count(0)

    data = saved(page, "Save as JSON", tmp_path)
    page.reload()
    page.locator("#file").set_input_files(data)
    finished(page)
    assert visible_text(page) == visible_text(alone)
    page.locator(".chip").first.click()
    page.get_by_role("button", name="Replay without this call").click()
    finished(page, 2)


def test_no_text_of_an_answer_runs_in_the_page_that_is_saved(mini: Served, opened: Open, tmp_path: Path) -> None:
    page = opened(mini.url)
    ask(page, "</script><script>throw 1</script><!--")
    finished(page)
    path = saved(page, "Save as HTML", tmp_path)
    assert path.read_text().count("</script>") == 2
    expect(opened(path.as_uri(), offline=True).get_by_role("heading", level=1)).to_contain_text("throw 1")


def file_of(*lines: dict[str, Any]) -> dict[str, Any]:
    content = "\n".join(json.dumps(line) for line in lines)
    return {"name": "answers.jsonl", "mimeType": "application/json", "buffer": content.encode()}


def record(number: int, outcome: str, text: str) -> dict[str, Any]:
    call = {"operator": "state", "position": 1, "num_latents": 3, "action": 1, "offset": 1}
    told = {"task": "mini", "id": str(number), "prompt": "1 + 1", "gold": "2", "answer": "2", "finish_reason": "eos"}
    counts = {"visible_tokens": 3, "latents": 3, "seconds": 0.5}
    return {**told, **counts, "outcome": outcome, "text": text, "invocations": [call]}


def test_an_evaluation_is_opened_and_its_texts_are_texts(mini: Served, opened: Open) -> None:
    page = opened(mini.url)
    attack = "😀<img src=x onerror=alert(1)>"
    lines = [record(0, "correct", "two"), record(1, "wrong", attack), record(2, "correct", "2")]
    page.locator("#file").set_input_files(file_of(*lines))
    expect(page.get_by_role("heading", name="answers.jsonl: 3 answers")).to_be_focused()
    page.get_by_label("Show", exact=True).select_option("wrong")
    page.get_by_role("button", name="mini 1").click()
    assert visible_text(page) == attack
    assert page.locator(".text > *").first.text_content() == "😀", "offsets count characters"
    expect(page.locator(".text img")).to_have_count(0)
    page.locator("#file").set_input_files({"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no JSON"})
    expect(page.get_by_role("alert").first).to_have_text("notes.txt, line 1, is not JSON.")


def test_a_server_that_is_gone_or_busy_is_told_in_words_and_can_be_asked_again(mini: Served, opened: Open) -> None:
    page = opened(mini.url)
    page.route("**/api/answers", lambda route: route.abort("connectionrefused"))
    ask(page)
    expect(page.locator(".answer .error")).to_contain_text("The server does not answer.")

    def busy(route: Route) -> None:
        route.fulfill(status=429, headers={"Retry-After": "1"}, json={"error": {"message": "64 answers wait"}})

    page.unroute("**/api/answers")
    page.route("**/api/answers", busy)
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".answer .error")).to_contain_text(
        "Many questions are being answered just now. Try again in 1 second."
    )
    page.unroute("**/api/answers")
    page.get_by_role("button", name="Try again").click()
    finished(page)
    expect(page.locator(".answer .error")).to_be_hidden()


def test_a_key_is_asked_for_until_it_is_right(model: Tyler, opened: Open) -> None:
    with serving(model, api_keys={"me": "secret"}) as locked:
        page = opened(locked.url)
        key = page.get_by_role("textbox", name="Key")
        key.fill("guess")
        page.get_by_role("button", name="Use this key").click()
        expect(page.get_by_role("alert").filter(has_text="That key is not the right one.")).to_be_visible()
        key.fill("secret")
        page.get_by_role("button", name="Use this key").click()
        ask(page, "x")
        finished(page)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_keeps_people_out_and_nothing_is_wider_than_a_phone(theme: str, mini: Served, opened: Open) -> None:
    options = {"color_scheme": theme, "bypass_csp": True, "viewport": {"width": 390, "height": 800}}
    page = opened(mini.url, **options)
    expect(page.locator("#examples li")).to_have_count(4)
    check(page)
    page.get_by_label("Ask twice").check()
    ask(page)
    finished(page, 2)
    page.locator(".chip").first.click()
    page.get_by_role("button", name="Operator lens").click()
    expect(page.locator(".lens")).to_have_count(1)
    check(page)
    effects = page.get_by_role("group", name="Effects")
    for width in (390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert effects.evaluate("one => one.scrollWidth - one.clientWidth") <= 0, f"columns are hidden at {width} px"


def check(page: Page) -> None:
    """No serious fault by axe-core, and no sideways scrolling."""
    found = axe.Axe().run(page).response["violations"]
    serious = [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]
    assert serious == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_question_follows_up_on_the_answer_before(mini: Served, opened: Open) -> None:
    page = opened(mini.url)
    ask(page)
    finished(page)
    page.get_by_label("Follow up").check()
    page.get_by_label("Ask a question").fill("And $1 + 1$?")
    with page.expect_request("**/api/answers") as asked:
        page.get_by_role("button", name="Ask", exact=True).click()
    finished(page)
    roles = [turn["role"] for turn in asked.value.post_data_json["messages"]]
    assert roles == ["user", "assistant", "user"]
    expect(page.locator("#turns .turn")).to_have_count(2)
