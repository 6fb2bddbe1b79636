"""Text from elsewhere stays text, wherever it comes from: 50 attempts to become script, with the policy and without it."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from tests.browser import new_page
from tests.explain.payloads import PAYLOADS
from tests.serve.page.conftest import open_page, relabelled
from tests.serve.server import Running, running
from tests.tiny import write_recipe

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.slow
POLICIES = [pytest.param(False, id="policy"), pytest.param(True, id="no-policy")]
# What the page itself is made of; anything else was made from text.
_STRANGE = """() => ["iframe", "object", "embed", "base", "style", "img", "video", "marquee", "math", "meta[http-equiv]"]
  .filter((name) => document.querySelector(name)).concat([...document.querySelectorAll("*")]
  .filter((one) => [...one.attributes].some((each) => each.name.startsWith("on") || /^\\s*javascript:/i.test(each.value)))
  .map((one) => one.outerHTML.slice(0, 100)))"""
_SCRIPTS = "() => document.scripts.length"


def check(page: Page, scripts: int) -> None:
    assert page.evaluate("() => window.ran") is None
    assert page.evaluate(_STRANGE) == []
    assert page.evaluate(_SCRIPTS) == scripts


def write(page: Page, text: str) -> None:
    """A text that is sent at once, without the pause in which more keys may come."""
    page.get_by_label("text to translate").fill(text)
    page.keyboard.press("Control+Enter")


def tried(bypass_csp: bool) -> list[str]:
    """All payloads where the page alone keeps them out; a few where its policy does, too."""
    return PAYLOADS if bypass_csp else PAYLOADS[::5]


def saying(answer: Any, status: int = 200) -> Callable[[Route], None]:
    """A server's answer of our own."""
    return lambda route: route.fulfill(status=status, json=answer)


@pytest.mark.parametrize("bypass_csp", POLICIES)
def test_no_payload_runs_as_text(browser: Browser, server: Running, bypass_csp: bool) -> None:
    assert len(PAYLOADS) == 50
    with open_page(browser, server.url, bypass_csp=bypass_csp, is_refusal_expected=True) as page:
        scripts = page.evaluate(_SCRIPTS)
        page.get_by_label("translate from").select_option("src")
        for payload in tried(bypass_csp):
            # The answer holds the payload itself in every place that a text can come to.
            words = [{"before": "", "text": payload, "probability": 0.2}]
            sentence = {"before": payload, "text": payload, "ways": [{"text": payload, "words": words}] * 2}
            answer: dict[str, Any] = {
                "sentences": [sentence] * 2,
                "after": payload,
                "source": payload,
                "target": payload,
            }
            answer["detectedLanguage"] = answer["otherLanguage"] = {"confidence": 9.0, "language": payload}
            page.route("**/sentences", saying(answer))
            page.route("**/alternatives", saying({"words": [{"word": payload, "probability": 0.5}]}))
            write(page, payload)
            page.locator("#out .w").first.wait_for()
            page.locator("#out .w").first.dispatch_event("click")
            page.locator("#popover li button").wait_for()
            check(page, scripts)
            page.unroute_all()
            page.route("**/sentences", saying({"error": payload}, 400))
            write(page, f"{payload} ")
            page.locator("#problem:not([hidden])").wait_for()
            check(page, scripts)
            page.unroute_all()
            write(page, payload)  # and what the model itself makes of it
            page.locator("#problem[hidden]").wait_for(state="attached")
            page.locator("#out:not(.waiting)").wait_for()
            check(page, scripts)
            write(page, "")
            page.locator("#out:empty").wait_for(state="attached")


@pytest.mark.parametrize("bypass_csp", POLICIES)
def test_no_payload_runs_from_a_link_an_edit_the_history_or_a_table(
    browser: Browser, server: Running, bypass_csp: bool
) -> None:
    with open_page(browser, server.url, bypass_csp=bypass_csp, is_refusal_expected=True) as page:
        scripts = page.evaluate(_SCRIPTS)
        for number, payload in enumerate(tried(bypass_csp)):
            fields = [("text", f"a b c\n{payload}"), ("edit", f"0:{payload}"), ("from", payload), ("to", "tgt")]
            fields[2:3] = [("from", "src")] if number % 2 else fields[2:3]
            page.evaluate("(fragment) => { location.hash = fragment; }", f"translate?{urlencode(fields)}")
            page.wait_for_function("() => location.hash === '#translate'")
            page.locator("#out:not(.waiting) .s").first.wait_for()
            page.get_by_role("button", name="Edit").click()
            page.get_by_label("edit the translation").fill(payload)
            page.get_by_role("button", name="Done").click()
            check(page, scripts)
        entry = {"time": 1, "edits": [[0, "x"]]}
        names = ("source", "target", "text", "translation")
        stored = [{**entry, **dict.fromkeys(names, payload)} for payload in PAYLOADS]
        page.evaluate("(stored) => localStorage.setItem('regard-history', JSON.stringify(stored))", stored)
        page.reload()
        page.locator("#history-button").click()
        page.locator(".past").nth(49).wait_for()
        assert PAYLOADS[0][:200] in page.locator(".past > span:first-child").all_text_contents()
        check(page, scripts)
        page.locator(".past").last.click()
        page.locator("#toast:not(:empty)").wait_for()
        table = io.StringIO()
        csv.writer(table).writerows([tried(bypass_csp)] * 2)
        file = {"name": "x.csv", "mimeType": "text/csv", "buffer": table.getvalue().encode("utf-8", "replace")}
        page.get_by_label("a document to translate").set_input_files(files=[file])
        page.get_by_label("Column to translate").wait_for()
        assert page.get_by_label("Column to translate").locator("option").count() == len(tried(bypass_csp))
        check(page, scripts)


@pytest.mark.parametrize("bypass_csp", POLICIES)
def test_no_payload_runs_as_an_explained_text(browser: Browser, server: Running, bypass_csp: bool) -> None:
    with open_page(browser, server.url, bypass_csp=bypass_csp, is_refusal_expected=True) as page:
        scripts = page.evaluate(_SCRIPTS)
        page.get_by_role("link", name="Explain").click()
        page.get_by_label("Model").select_option(label="src → tgt")
        for payload in PAYLOADS[::5]:  # all of them are tried on the same drawing in tests/explain
            page.get_by_label("Sentence").fill(payload)
            page.get_by_label("Translation", exact=True).fill(payload)
            page.get_by_role("button", name="Explain").click()
            page.locator("#ask-button:enabled").wait_for()
            page.locator("#explained:not(.waiting) h1").wait_for()
            check(page, scripts)


@pytest.mark.parametrize("bypass_csp", POLICIES)
def test_no_payload_runs_as_a_files_name(browser: Browser, server: Running, bypass_csp: bool) -> None:
    with open_page(browser, server.url, bypass_csp=bypass_csp, is_refusal_expected=True) as page:
        scripts = page.evaluate(_SCRIPTS)
        page.get_by_label("translate from").select_option("src")
        for number, payload in enumerate(tried(bypass_csp)):
            name = payload.replace("\x00", "") + (".txt" if number % 2 else ".exe")
            file = {"name": name, "mimeType": "text/plain", "buffer": b"a b c\n"}
            page.get_by_label("a document to translate").set_input_files(files=[file])
            first = page.locator(".document").first
            first.locator("a[download], .problem").wait_for()
            check(page, scripts)
            assert first.locator("b").text_content() in (name, name.rpartition("/")[2])
            if number % 2:
                assert first.locator("a").get_attribute("href").startswith(f"blob:{server.url}/")
            first.get_by_role("button").click()


@pytest.mark.parametrize("bypass_csp", POLICIES)
def test_no_payload_runs_as_a_term(browser: Browser, bypass_csp: bool) -> None:
    """Written by hand, lying in the browser's storage, and read from a file."""
    with (
        running("--limit", "term_characters=1000", "--limit", "sentence_terms=200") as server,
        open_page(browser, server.url, bypass_csp=bypass_csp, is_refusal_expected=True) as page,
    ):
        scripts = page.evaluate(_SCRIPTS)
        page.locator("#terms-button").click()
        shown = 0
        for payload in tried(bypass_csp):
            page.get_by_label("In src").fill(payload)
            page.get_by_label("In tgt").fill(payload)
            page.get_by_role("button", name="Add").first.click()
            page.get_by_label("Leave untranslated").fill(payload)
            page.get_by_role("button", name="Add").last.click()
            page.get_by_label("text to translate").fill(payload)  # it is sent with the text, and comes back in it
            page.locator("#out:not(.waiting)").wait_for()
            check(page, scripts)
            shown = max(shown, page.locator("#terms li").count())
            for remove in page.locator("#terms .remove").all()[::-1]:
                remove.click()
        assert shown == 2
        words = [one.strip() for one in PAYLOADS if one.strip()]
        kept = [
            one for one in words if not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", one)
        ]  # the others are no terms
        assert len(kept) >= 45
        stored = {"glossary": [[one, one] for one in words], "keep": [*words, {"no": "word"}, 7, None]}
        page.evaluate(
            """(stored) => localStorage.setItem('regard-terms ["src","tgt"]', JSON.stringify(stored))""", stored
        )
        page.reload()
        page.locator("#terms-button").click()
        page.locator("#keep-list li").nth(len(kept) - 1).wait_for()
        assert page.locator("#keep-list li > span").all_text_contents() == kept
        check(page, scripts)
        page.evaluate("() => localStorage.clear()")
        page.reload()
        page.locator("#terms-button").click()
        lines = "".join(f"{one}\tx {one}\n" for one in kept if not one.startswith("#")).encode()
        file = {"name": "<img src=x onerror=alert(1)>.tsv", "mimeType": "text/plain", "buffer": lines}
        page.get_by_label("a file of terms to import").set_input_files(files=[file])
        page.locator("#glossary-list li").nth(len(lines.splitlines()) - 1).wait_for()
        check(page, scripts)


@pytest.mark.parametrize("bypass_csp", POLICIES)
def test_no_payload_runs_as_a_models_name(browser: Browser, server: Running, bypass_csp: bool) -> None:
    """All at once, as the languages that a server has; then one real model with such a name."""
    languages = [{"code": one, "name": one, "targets": [PAYLOADS[0], one]} for one in PAYLOADS]
    with open_page(browser, server.url, bypass_csp=bypass_csp, is_refusal_expected=True) as page:
        page.route("**/languages", saying(languages))
        page.reload()
        scripts = page.evaluate(_SCRIPTS)
        page.get_by_label("translate from").locator("option").nth(50).wait_for(state="attached")
        for number in range(1, 51):  # the first entry is for detecting
            page.get_by_label("translate from").select_option(index=number)
            check(page, scripts)
        page.route("**/explain", saying({"error": PAYLOADS[0]}, 400))
        page.get_by_role("link", name="Explain").click()
        page.locator("#ask-said.problem").wait_for()
        assert page.get_by_label("Model").locator("option").count() == 100
        check(page, scripts)


@pytest.mark.parametrize("bypass_csp", POLICIES)
def test_no_payload_runs_from_a_bundle_or_a_run(browser: Browser, tmp_path: Path, bypass_csp: bool) -> None:
    name = PAYLOADS[9]
    run = tmp_path / "<img src=x onerror=alert(1)>"
    recipe = write_recipe(run)
    recipe.write_text(recipe.read_text().replace('"src"', json.dumps(name)).replace("{src,tgt}", "{source,target}"))
    samples = [{"source": one, "reference": one, "translation": one} for one in PAYLOADS]
    records = [
        {"kind": "train", "step": 1, "loss": 2.0, "nll": 1.0, "lr": 0.1},
        {"kind": "valid", "step": 2, "loss": 1.0, "bleu": 3.0, "samples": samples},
        {
            "kind": "test",
            "name": name,
            "scores": {"sentences": 9, "metrics": {"x": {"name": name, "score": 1.0, "signature": name}}},
        },
        *({"kind": "note", "text": one} for one in PAYLOADS),
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    model = relabelled(tmp_path / "bundle", name, PAYLOADS[12])
    with (
        running("--run", str(run), model=model) as server,
        open_page(browser, server.url, bypass_csp=bypass_csp) as page,
    ):
        page.get_by_label("text to translate").fill("a b c")
        page.locator("#out", has_text="c b a").wait_for()
        scripts = page.evaluate(_SCRIPTS)
        assert page.locator("#from-alone").text_content() == name
        check(page, scripts)
        page.get_by_role("button", name="Explain").click()
        page.locator("#explained h1", has_text="a b c").wait_for()
        check(page, scripts)
        page.get_by_role("link", name="Training").click()
        page.locator(".run-sample").nth(49).wait_for()
        assert page.locator(".run-head h2").text_content() == f"{name} → tgt"
        check(page, scripts)


def test_what_is_let_in_would_be_noticed(browser: Browser, server: Running) -> None:
    with open_page(browser, server.url, bypass_csp=True, is_refusal_expected=True) as page:
        scripts = page.evaluate(_SCRIPTS)
        page.evaluate("""() => { document.getElementById("hint").innerHTML = "<img src=x onerror=alert(1)>"; }""")
        page.locator("img").wait_for(state="attached")
        assert len(page.evaluate(_STRANGE)) == 2
        page.evaluate("""() => { const made = document.createElement("script"); made.textContent = "alert(1)";
          document.body.append(made); document.querySelector("img").remove(); }""")
        assert page.evaluate("() => window.ran") is True
        assert page.evaluate(_SCRIPTS) == scripts + 1


def test_the_policy_itself_stops_markup_and_script(browser: Browser, server: Running) -> None:
    with new_page(browser) as page:
        page.add_init_script("window.alert = () => { window.ran = true; };")
        page.goto(server.url)
        page.get_by_label("text to translate").wait_for()
        blocked = page.evaluate(
            """() => { try { document.body.innerHTML = "<b>x</b>"; return false; } catch { return true; } }"""
        )
        assert blocked
        directive = page.evaluate("""() => new Promise((resolve) => {
          addEventListener("securitypolicyviolation", (event) => resolve(event.effectiveDirective));
          const link = document.createElement("a");
          link.href = "javascript:alert(1)";
          document.body.append(link);
          link.click();
        })""")
        assert directive.startswith(("script-src", "require-trusted-types-for"))
        assert page.evaluate("() => window.ran") is None
