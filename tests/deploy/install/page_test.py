#!/usr/bin/env python3
"""The commands of docs/installation.md do what the page describes.

They run as they stand there, in a folder that looks like the source tree, with
a HOME of their own. Commands that would change the machine are played: bazel
has built already, sudo changes no user, apt-get unpacks, and systemctl and
sbatch look whether what they are to start is there.
"""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

TIMEOUT_S = 240
HERE = os.path.abspath(".")

PLAYED = {
    "bazel": """\
case "$1" in
  build) echo "built ${*:2}" >&2 ;;
  info) echo "${BUILT}" ;;
  *) exit 1 ;;
esac
""",
    "sudo": """\
if [[ "$1" == cp ]]; then exec cp "$2" "${ROOT}$3"; fi
exec "$@"
""",
    "apt-get": """\
[[ "$1" == install ]] && exec dpkg-deb -x "$2" "${ROOT}"
""",
    "systemctl": """\
unit="${@: -1}"
test -f "${ROOT}/lib/systemd/system/$(sed 's/@.*\\./@./' <<< "${unit}")"
if [[ "${unit}" == *@* ]]; then
  job="$(sed 's/.*@\\(.*\\)\\.service/\\1/' <<< "${unit}")"
  test -f "${ROOT}/etc/coxswain/worker-${job}.env"
fi
echo "started ${unit}"
""",
    "sbatch": """\
while [[ "$1" == --* ]]; do shift; done
head -n 1 "$1" | grep -q '^#!/' && bash -n "$1" && echo "queued ${*:2}"
""",
}
# What the page leads one to expect, in this order.
EXPECTED = (
    r"^coxswain \d",
    r"^Installed below .*/home/coxswain",
    r"^coxswain \d",
    r"rank 0 of 2: -4\.5$",
    r"rank 0 of 2: 3$",
    r"/home/coxswain_[\d.]+_\w+\.deb$",
    r"^started coxswain-coordinator\.service$",
    r"^started coxswain-worker@example\.service$",
    r"^queued \./train$",
)


class PageTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(shutil.rmtree, self.folder)
        for name in ("home", "root", "played", "source"):
            os.mkdir(self.path(name))
        for name, text in PLAYED.items():
            with open(self.path("played", name), "w",
                      encoding="utf-8") as file:
                file.write("#!/usr/bin/env bash\nset -e\n" + text)
            os.chmod(self.path("played", name), 0o755)
        for name in ("CHANGELOG.md", "base", "deploy", "tests", "tools"):
            os.symlink(os.path.join(HERE, name), self.path("source", name))
        os.symlink(HERE, self.path("source", "bazel-bin"))

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def test_its_commands_work(self):
        for tool in ("cmake", "dpkg-shlibdeps"):
            if not shutil.which(tool):
                print("SKIPPED: no %s here (tools/install_deps.sh --tests "
                      "installs it), so the page was not tried" % tool,
                      flush=True)
                self.skipTest("no " + tool)
        with open("docs/installation.md", encoding="utf-8") as file:
            blocks = re.findall(r"^```sh\n(.*?)^```$", file.read(),
                                re.MULTILINE | re.DOTALL)
        self.assertGreater(len(blocks), 5)
        done = subprocess.run(
            ["bash", "-euc", "\n".join(blocks)],
            cwd=self.path("source"), text=True, timeout=TIMEOUT_S,
            env=dict(os.environ, HOME=self.path("home"),
                     ROOT=self.path("root"), BUILT=HERE,
                     PATH=self.path("played") + ":" + os.environ["PATH"]),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)
        at = 0
        for words in EXPECTED:
            found = re.compile(words, re.MULTILINE).search(done.stdout, at)
            self.assertTrue(found, "%r is missing: %s" % (words, done.stdout))
            at = found.end()
        self.assertEqual(os.listdir(self.path("home", "coxswain")), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
