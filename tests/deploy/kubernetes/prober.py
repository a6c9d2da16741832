#!/usr/bin/env python3
"""Asks for health over HTTP, as a kubelet does; runs in the node's network.

Reads lines "HOST:PORT PATH", and answers each with the status, such as "200",
or with what went wrong.
"""

import sys
import urllib.error
import urllib.request


def check(address, path):
    try:
        with urllib.request.urlopen(
            "http://%s%s" % (address, path), timeout=5
        ) as answer:
            return str(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return str(error.code)
    except OSError as error:
        return type(error).__name__


if __name__ == "__main__":
    for line in sys.stdin:
        print(check(*line.split()), flush=True)
