"""Tests that run beside each other, because they mostly wait."""

import concurrent.futures
import unittest


class BesideTest(unittest.TestCase):
    """Whose tests have nothing in common, and spend their time with processes
    that wait for each other: all of them begin with the first one, each on a
    thread."""

    def __init_subclass__(cls, **named):
        super().__init_subclass__(**named)
        names = unittest.defaultTestLoader.getTestCaseNames(cls)
        cls._bodies = {name: getattr(cls, name) for name in names}
        for name in names:
            setattr(cls, name, _result_of(name, cls._bodies[name]))

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        pool = concurrent.futures.ThreadPoolExecutor(len(cls._bodies))
        cls.addClassCleanup(pool.shutdown)
        cls._begun = {
            name: pool.submit(body, cls(name))
            for name, body in cls._bodies.items()
        }


def _result_of(name, body):
    def test(self):
        self._begun[name].result()

    test.__doc__ = body.__doc__
    return test
