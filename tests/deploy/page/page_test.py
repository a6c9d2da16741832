#!/usr/bin/env python3
"""The status page in a real browser: what a reader sees, hears and types.

Extreme cases are served by sample_server; coordinator_test.py looks at a real
coordinator.
"""

import os
import re
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import browser  # noqa: E402
from sample_answers import HOSTILE, Job  # noqa: E402
from sample_server import SampleServer, World  # noqa: E402

SECTIONS = [
    "Now",
    "Who waits for whom",
    "The last steps by rank",
    "Ranks",
    "Bytes by hook",
    "Checkpoints",
    "Plan and its history",
    "Membership and other events",
]
# Whatever the job's size.
MAX_ELEMENTS = 6000

ROWS = (
    "return [...document.querySelectorAll('.rows .rank')]"
    ".map(e => parseInt(e.textContent.replace('◆', '')))"
)
FOCUSED = "return document.activeElement"
# The tables of which a part is only seen by scrolling.
CUT = (
    "return [...document.querySelectorAll('.scroll')]"
    ".filter(e => e.scrollWidth > e.clientWidth)"
    ".map(e => e.getAttribute('aria-label'))"
)
SIDEWAYS = (
    "return document.documentElement.scrollWidth - window.innerWidth"
)


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.window = browser.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.window.close()

    def serve(self, *jobs, **options):
        server = SampleServer(World(jobs, **options))
        self.addCleanup(server.close)
        return server

    def open(self, url, **look):
        self.window.look(**look)
        self.window.open(url)
        self.window.wait_for(
            "return document.querySelectorAll('main table').length > 0",
            "a table of " + url,
        )

    def open_job(self, server, name="mnist", **look):
        self.open(server.url + "/#/jobs/" + name, **look)

    def rows(self):
        return self.window.run(ROWS)

    def await_polls(self, server, many):
        """Until the page has asked so many times more."""

        def polls():
            return sum(path.endswith("/version") for path in server.asked)

        wanted = polls() + many
        self.window.wait(lambda: polls() >= wanted, "%d more polls" % many)

    def press(self, *keys):
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.window.driver).send_keys(*keys).perform()

    def assert_fits(self):
        self.assertLessEqual(self.window.run(SIDEWAYS), 0)

    # What is shown.

    def test_a_job_has_all_its_sections(self):
        server = self.serve(Job("mnist", 8, slow=[5]))
        self.open_job(server)
        self.assertEqual(
            self.window.run(
                "return [...document.querySelectorAll('h2')]"
                ".map(e => e.innerText)"
            ),
            SECTIONS,
        )
        for selector, words in [
            (".now", "powersgd(rank=2,start_step=100)"),
            (".now", "2.0 TB"),
            (".report", "rank 5 (host-0) has not sent its ticket"),
            (".steps figcaption", "Stragglers: rank 5 in"),
            (".members", "waits for the decision of step 1201"),
            (".traffic", "40.0 GB"),
            (".traffic", "980 GB"),
            (".traffic", "50.00"),
            (".checkpoints", "step-000800"),
            (".plan", "enforcement=audit"),
            (".history", "exit status 137"),
        ]:
            self.assertIn(words, self.window.text(".card" + selector))
        self.assertEqual(self.window.complaints(), [])

    def test_a_pipeline_has_a_planned_step_and_the_places_of_its_ranks(self):
        server = self.serve(Job("gpt", 4, stages=4), Job("mnist", 2))
        self.open_job(server, "gpt")
        card = self.window.text(".card.pipeline")
        for words in [
            "stage 1 (rank 1: pp 1, dp 0; host-0/1) has been in 1F3",
            "One step of 1f1b, 8 micro-batches, as planned",
            "median times that the ranks report",
            "It is not a recording of a step.",
            "0RECV_F4",
        ]:
            self.assertIn(words, card)
        # The one that the others wait for comes first.
        self.assertEqual(
            self.window.run(
                "return [...document.querySelectorAll('.pipeline tbody tr')]"
                ".map(e => e.innerText.split('\t')[0].trim())"
            ),
            ["1", "0", "2", "3"],
        )
        lanes = self.window.run(
            "return [...document.querySelectorAll('.pipeline .line svg')]"
            ".map(e => [...e.querySelectorAll('path')]"
            ".map(p => (p.getAttribute('d').match(/M/g) || []).length))"
        )
        self.assertEqual(lanes, [[8, 8, 1]] * 4)
        self.assert_fits()
        self.assertEqual(self.window.complaints(), [])
        self.open_job(server)
        self.assertEqual(
            self.window.run(
                "return document.querySelectorAll('.card.pipeline').length"
            ),
            0,
        )

    def test_jobs_that_need_somebody_come_first(self):
        self.open(
            self.serve(
                Job("a", 2), Job("b", 2, slow=[1]), Job("c", 2, state="ended")
            ).url
        )
        names = (
            "return [...document.querySelectorAll('tbody th')]"
            ".map(e => e.innerText)"
        )
        self.assertEqual(self.window.run(names), ["b", "a", "c"])
        box = self.window.driver.find_element("id", "filter")
        box.send_keys("C")
        self.assertEqual(self.window.run(names), ["c"])

    def test_records_in_quarantine_stand_above_the_jobs(self):
        server = self.serve(
            Job("mnist", 2),
            quarantined=[
                {
                    "table": "members/7", "key": "block/00000000",
                    "job": HOSTILE, "bytes": 3, "reason": "it is cut off",
                }
            ],
        )
        self.open(server.url)
        text = self.window.text(".quarantine")
        self.assertIn("1 record of the state could not be read", text)
        for words in ["members/7", "block/00000000", "it is cut off", "<img"]:
            self.assertIn(words, text)
        sections = (
            "return [...document.querySelectorAll('.card h2')]"
            ".map(e => e.innerText)"
        )
        self.assertEqual(
            self.window.run(sections),
            ["Records in quarantine", "All jobs of this coordinator"],
        )
        self.assertEqual(self.window.complaints(), [])

    def test_numbers_are_brought_up_to_date_in_place(self):
        job = Job("mnist", 4)
        server = self.serve(job)
        self.open_job(server)
        self.window.run("window.kept = document.querySelector('.now dl')")
        self.assertIn("1,200", self.window.text(".now"))
        job.step = 1234
        self.window.wait(
            lambda: "1,234" in self.window.text(".now"), "the new step"
        )
        self.assertTrue(
            self.window.run(
                "return window.kept === document.querySelector('.now dl')"
            )
        )
        self.assertIn("Steps 1", self.window.text("figcaption"))
        self.assertIn("to 1234", self.window.text("figcaption"))

    def test_an_unknown_job_is_shown_as_unknown(self):
        server = self.serve(Job("mnist", 2))
        self.window.open(server.url + "/#/jobs/other")
        self.window.wait(
            lambda: "there is no job 'other'" in self.window.text("main"),
            "the error",
        )

    # Who does not see it, or has no mouse.

    def test_structure_is_that_of_a_document(self):
        self.open_job(self.serve(Job("mnist", 8, slow=[5])))
        count = "return document.querySelectorAll(arguments[0]).length"
        for selector, many in [
            ("html[lang]", 1),
            ("main", 1),
            ("header", 1),
            ("nav[aria-label]", 1),
            ("footer", 1),
            ("h1", 1),
            ("[aria-live=polite]", 2),
            ("[aria-live=assertive]", 0),
            ("th:not([scope])", 0),
            ("section:not([aria-labelledby])", 0),
            ("table:not(:has(caption))", 0),
            ("svg:not([aria-hidden])", 0),
            ("[style]", 0),
            ("input:not([id])", 0),
        ]:
            self.assertEqual(self.window.run(count, selector), many, selector)
        unlabelled = (
            "return [...document.querySelectorAll('input, select')]"
            ".filter(e => e.labels.length === 0).length"
        )
        self.assertEqual(self.window.run(unlabelled), 0)

    def test_the_picture_is_also_a_table(self):
        self.open_job(self.serve(Job("mnist", 8, slow=[5])))
        table = (
            "return [...document.querySelectorAll('.steps tbody tr')]"
            ".map(e => [...e.cells].map(c => c.textContent))"
        )
        cells = self.window.run(table)
        self.assertEqual([int(row[0]) for row in cells], self.rows())
        self.assertEqual(cells[0][0], "5")
        self.assertIn("straggler", self.window.text(".legend"))
        self.assertRegex(cells[0][2], r"in \d+ of \d+")
        self.assertRegex(cells[0][3], r"^\d+(\.\d)? ms$")
        # Marked with a shape of its own in each of these steps, and in words.
        times = int(re.search(r"in (\d+) of", cells[0][2]).group(1))
        marks = "return document.querySelectorAll('.mark')[1].getAttribute('d')"
        self.assertEqual(self.window.run(marks).count("M"), times)

    def test_updates_are_not_read_out_each_time(self):
        job = Job("mnist", 4)
        server = self.serve(job)
        self.open_job(server)
        self.window.run(
            "window.heard = 0;"
            "for (const line of document.querySelectorAll('[aria-live]')) {"
            "  new MutationObserver(() => { ++window.heard; }).observe(line, "
            "{childList: true, characterData: true, subtree: true});"
            "}"
        )
        job.step = 1300
        self.await_polls(server, 3)
        self.assertEqual(self.window.run("return window.heard"), 0)
        job.state = "ended"
        self.window.wait(
            lambda: "Job mnist is ended." in self.window.run(
                "return document.getElementById('news').textContent"),
            "the news",
        )

    def test_everything_can_be_done_with_the_keyboard(self):
        from selenium.webdriver.common.keys import Keys

        server = self.serve(Job("mnist", 8, slow=[5]))
        self.open(server.url)
        self.window.run("document.activeElement.blur(); window.focus()")
        self.press(Keys.TAB)
        while "Skip" not in self.window.run(FOCUSED).text:
            self.press(Keys.SHIFT, Keys.TAB)
        self.press(Keys.ENTER)
        self.assertEqual(self.window.run(FOCUSED).tag_name, "main")
        self.tab_to("a", "mnist")
        self.press(Keys.ENTER)
        self.window.wait_for(
            "return document.querySelectorAll('.rows button').length === 8",
            "the job",
        )
        self.assertEqual(self.window.run(FOCUSED).tag_name, "h1")
        self.tab_to("button", "7")
        self.assert_focus_is_seen()
        self.press(Keys.SPACE)
        self.window.wait(lambda: self.rows()[:2] == [7, 5], "rank 7 on top")
        self.await_polls(server, 2)
        focused = self.window.run(FOCUSED)
        self.assertEqual(focused.get_attribute("data-value"), "7")
        self.assertEqual(focused.get_attribute("aria-pressed"), "true")

    def tab_to(self, tag, text):
        from selenium.webdriver.common.keys import Keys

        for _ in range(60):
            self.press(Keys.TAB)
            focused = self.window.run(FOCUSED)
            shown = focused.text.replace("◆", "").split("▲")[0].strip()
            if focused.tag_name == tag and shown == text:
                return
        self.fail("no %s '%s' was reached" % (tag, text))

    def assert_focus_is_seen(self):
        outline = (
            "const style = getComputedStyle(document.activeElement);"
            "return [style.outlineStyle, parseFloat(style.outlineWidth)]"
        )
        style, width = self.window.run(outline)
        self.assertEqual(style, "solid")
        self.assertGreaterEqual(width, 2)

    # What it is looked at with.

    def test_a_phone_shows_it_without_scrolling_sideways(self):
        server = self.serve(
            Job("mnist", 8, slow=[5]), Job("odd", 3, slow=[1], text=HOSTILE * 3)
        )
        for path in ("/", "/#/jobs/mnist", "/#/jobs/odd"):
            self.open(server.url + path, width=360, height=740)
            self.assert_fits()
        self.open_job(server, width=360, height=740)
        wide = "return document.querySelector('.line').scrollWidth"
        self.assertLessEqual(self.window.run(wide), 340)
        self.window.look(width=320, height=740)
        self.await_polls(server, 1)
        self.assert_fits()

    def test_tables_are_shown_whole_at_ordinary_widths(self):
        server = self.serve(Job("mnist", 8, slow=[5]))
        self.open_job(server)
        self.window.run(
            "document.querySelectorAll('details')"
            ".forEach(e => { e.open = true; })"
        )
        for width in (1920, 1600, 1400, 1280, 1180, 1024):
            self.window.look(width=width)
            self.assertEqual(self.window.run(CUT), [], width)
            self.assert_fits()
        # The tables with the most columns scroll within themselves from here on.
        self.window.look(width=800)
        self.assertLessEqual(
            set(self.window.run(CUT)), {"Ranks", "Versions of the plan"}
        )
        # The measure itself can fail.
        self.window.look(width=360)
        self.assertIn("Bytes by hook", self.window.run(CUT))

    def test_text_can_be_read_in_light_and_dark(self):
        here = os.path.dirname(os.path.abspath(__file__))
        with open(os.path.join(here, "contrast.js"), encoding="utf-8") as file:
            measure = file.read()
        server = self.serve(Job("mnist", 8, slow=[5]))
        grounds = set()
        for dark in (False, True):
            self.open_job(server, dark=dark)
            self.window.run(
                "document.querySelectorAll('details')"
                ".forEach(e => { e.open = true; })"
            )
            found = self.window.run(measure, 4.5)
            self.assertGreater(found["measured"], 200)
            self.assertEqual(found["failed"], [])
            # The measure itself can fail.
            self.assertNotEqual(self.window.run(measure, 20.9)["failed"], [])
            grounds.add(
                self.window.run(
                    "return getComputedStyle(document.body).backgroundColor"
                )
            )
        self.assertEqual(len(grounds), 2)

    # What peers may do to it.

    def test_text_of_peers_stays_text(self):
        server = self.serve(
            Job("<b>x</b>", 3, slow=[1], text=HOSTILE, stages=3),
            Job("mnist", 2),
        )
        self.open(server.url)
        self.assertIn("<b>x</b>", self.window.text("tbody"))
        self.window.run(
            "[...document.querySelectorAll('tbody a')]"
            ".find(e => e.textContent === '<b>x</b>').click()"
        )
        self.window.wait_for(
            "return document.querySelectorAll('.history tbody tr').length > 0",
            "the job",
        )
        for section in SECTIONS:
            self.assertIn(section, self.window.text("main"))
        for card in ("now", "report", "members", "traffic", "plan",
                     "checkpoints", "history", "pipeline"):
            text = self.window.text(".card." + card).replace("\n", "")
            self.assertIn("<script>document.title", text, card)
        self.assertEqual(
            self.window.run(
                "return document.querySelectorAll("
                "'main img, main script, main b').length"
            ),
            0,
        )
        self.assertEqual(self.window.driver.title, "<b>x</b> – Coxswain")
        self.assertEqual(self.window.complaints(), [])

    def test_nothing_is_asked_of_other_hosts(self):
        server = self.serve(Job("mnist", 2))
        self.open_job(server)
        asked = self.window.run(
            "return performance.getEntriesByType('resource').map(e => e.name)"
        )
        self.assertGreater(len(asked), 5)
        for url in asked:
            self.assertTrue(url.startswith(server.url + "/"), url)

    # How much there may be.

    def test_thousands_of_ranks_stay_few_elements(self):
        slow = [70, 71, 4095]
        for knows_order in (True, False):
            server = self.serve(
                Job("big", 4096, slow=slow, stages=64),
                knows_order=knows_order,
            )
            self.open_job(server, "big")
            self.window.wait_for(
                "return document.querySelectorAll('.rows .rank').length === 24",
                "the picture",
            )
            shown = slow if knows_order else slow[:1]
            self.assertEqual(self.rows()[: len(shown)], shown)
            self.assertIn("24 of 4,096 ranks", self.window.text(".steps"))
            self.assert_few_elements()
            pin = self.window.driver.find_element("id", "pin-rank")
            pin.send_keys("2222\n")
            self.window.wait(
                lambda: self.rows()[:1] == [2222], "rank 2222 on top"
            )
            self.assertEqual(len(self.rows()), 24)

    def assert_few_elements(self):
        many = self.window.run("return document.querySelectorAll('*').length")
        self.assertLess(many, MAX_ELEMENTS)

    def test_ranks_are_read_in_pages(self):
        server = self.serve(Job("big", 150))
        self.open_job(server, "big")
        label = "0 to 63 of 150 ranks"
        self.assertIn(label, self.window.text(".members"))
        click = "document.querySelectorAll('.members button')[1].click()"
        self.window.run(click)
        self.window.wait(
            lambda: "64 to 127 of 150 ranks" in self.window.text(".members")
            and "host-8" in self.window.text(".members"),
            "the second page",
        )

    def test_a_thousand_jobs_stay_few_elements(self):
        jobs = [Job("job-%04d" % index, 2) for index in range(1023)]
        server = self.serve(*jobs, Job("zz", 2, slow=[1]))
        self.open(server.url)
        first = "return document.querySelector('tbody th').innerText"
        self.assertEqual(self.window.run(first), "zz")
        self.assertIn("100 jobs of 1,024", self.window.text("main"))
        self.assert_few_elements()


if __name__ == "__main__":
    reason = browser.why_not()
    if reason:
        print("SKIPPED: %s" % reason, file=sys.stderr)
        sys.exit(0)
    unittest.main()
