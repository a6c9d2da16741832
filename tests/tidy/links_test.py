#!/usr/bin/env python3
"""The pages lead to each other: links, anchors, and the index of docs/."""

import os
import re
import sys
import unittest

LINK = re.compile(r"\]\(([^)\s]+)\)|\b(?:src|srcset)=\"([^\"]+)\"")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
README_LINES = 200


def anchors(text):
    """Returns the anchors that a browser of the repository gives headings."""
    found = set()
    for heading in HEADING.findall(FENCED.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


def links(text):
    """Yields the links of a page to files and anchors, each once."""
    found = set()
    for pair in LINK.findall(FENCED.sub("", text)):
        target = pair[0] or pair[1]
        if not re.match(r"[a-z]+:", target) and target not in found:
            found.add(target)
            yield target


def findings(pages, exists):
    """Returns the links that lead nowhere, of pages given as {path: text}."""
    broken = []
    for path, text in sorted(pages.items()):
        for target in links(text):
            file, _, anchor = target.partition("#")
            folder = os.path.dirname(path)
            page = os.path.normpath(os.path.join(folder, file)) if file else path
            if not exists(page):
                broken.append("%s: no file %s" % (path, target))
            elif anchor and anchor not in anchors(pages.get(page, "")):
                broken.append("%s: no heading %s" % (path, target))
    return broken


def read_pages(root):
    pages = {}
    for folder in ("", "docs", "docs/adr"):
        for name in os.listdir(os.path.join(root, folder)):
            if name.endswith(".md"):
                path = os.path.join(folder, name)
                with open(os.path.join(root, path), encoding="utf-8") as file:
                    pages[path] = file.read()
    return pages


class RulesTest(unittest.TestCase):
    def test_links_that_lead_nowhere_are_found(self):
        pages = {
            "README.md": "[a](docs/a.md#the-one-two) [b](docs/b.md) [c](#no)\n"
            "[d](https://example.com/x.md)\n```\n[e](e.md)\n```\n"
            '<img src="docs/a.png">',
            "docs/a.md": "# A\n## The `one`, two\n[up](../README.md)",
        }
        self.assertEqual(
            findings(pages, lambda path: path in pages),
            [
                "README.md: no file docs/b.md",
                "README.md: no heading #no",
                "README.md: no file docs/a.png",
            ],
        )


class TreeTest(unittest.TestCase):
    root = os.path.dirname(os.path.realpath("WORKSPACE"))

    def test_links_lead_somewhere(self):
        pages = read_pages(self.root)
        found = findings(
            pages, lambda path: os.path.exists(os.path.join(self.root, path))
        )
        self.assertEqual(found, [])

    def test_the_index_has_each_page(self):
        pages = read_pages(self.root)
        listed = set(links(pages["docs/README.md"]))
        for path in pages:
            folder, name = os.path.split(path)
            if folder == "docs" and name != "README.md":
                self.assertIn(name, {link.split("#")[0] for link in listed})

    def test_the_readme_is_short(self):
        lines = read_pages(self.root)["README.md"].splitlines()
        self.assertLessEqual(len(lines), README_LINES)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        TreeTest.root = sys.argv.pop(1)
    unittest.main()
