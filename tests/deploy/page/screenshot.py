#!/usr/bin/env python3
"""Takes a picture of the status page.

  tests/deploy/page/screenshot.py http://127.0.0.1:8080/#/jobs/mnist page.png
"""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import browser  # noqa: E402

LOADED = "return document.querySelectorAll('main .card').length > 0"
DRAWN = "return document.querySelectorAll('.line svg').length > 1"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url")
    parser.add_argument("out")
    parser.add_argument("--width", type=int, default=1180)
    parser.add_argument("--height", type=int, default=1180)
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    reason = browser.why_not()
    if reason:
        sys.exit("screenshot.py: " + reason)
    window = browser.Browser()
    try:
        window.look(options.width, options.height, options.dark)
        window.open(options.url)
        window.wait_for(LOADED, "the page")
        if "#/jobs/" in options.url:
            window.wait_for(DRAWN, "the picture of the last steps")
        window.driver.get_screenshot_as_file(options.out)
    finally:
        window.close()


if __name__ == "__main__":
    main()
