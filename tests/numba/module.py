"""Runs one module of numba-cuda's own tests, and prints one line a test: how it ended, and its name."""

import os
import sys
import unittest


class Lines(unittest.TestResult):
    """One line at a test's end. A test with failed subtests has failed."""

    def __init__(self, to):
        super().__init__()
        self.to = to
        self.outcome = "passed"

    def startTest(self, test):
        super().startTest(test)
        self.outcome = "passed"

    def note(self, outcome, error=None):
        self.outcome = outcome
        if error:
            print(self._exc_info_to_string(error, self.test), file=sys.stderr)

    def addError(self, test, error):
        self.test = test
        self.note("failed", error)
        if not isinstance(test, unittest.TestCase) or "_ErrorHolder" in type(test).__name__:
            print("failed", test.id(), file=self.to, flush=True)

    def addFailure(self, test, error):
        self.test = test
        self.note("failed", error)

    def addSubTest(self, test, subtest, error):
        if error:
            self.test = test
            self.note("failed", error)

    def addSkip(self, test, reason):
        self.outcome = "skipped"

    def addExpectedFailure(self, test, error):
        self.outcome = "expected"

    def addUnexpectedSuccess(self, test):
        self.outcome = "unexpected"

    def stopTest(self, test):
        super().stopTest(test)
        print(self.outcome, test.id(), file=self.to, flush=True)


def main():
    # Tests look at what is printed, and print much themselves.
    to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    tests = unittest.defaultTestLoader.loadTestsFromName(sys.argv[1])
    tests.run(Lines(to))


main()
