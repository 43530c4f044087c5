"""How cases are run and told, and what judges in them use."""

import signal


class Failed(Exception):
    """A case did not see what it should have; the message says what it saw."""


class Ambiguous(Failed):
    """What reached the upstream could be read in more than one way, or not at all."""


def expect(truth, why):
    if not truth:
        raise Failed(why)


def equal(what, seen, wanted):
    if seen != wanted:
        raise Failed(f"{what}: {clip(seen)}, not {clip(wanted)}")


def clip(what, most=300):
    text = repr(what)
    return text if len(text) <= most else f"{text[:most]}…"


class Score:
    def __init__(self):
        self.cases, self.failed, self.ambiguous, self.remarks = 0, [], 0, {}

    def run(self, name, case, seconds=20):
        """Runs a case and prints its line."""
        def too_long(*_):
            raise Failed("took too long")

        signal.signal(signal.SIGALRM, too_long)
        signal.alarm(seconds)
        self.cases += 1
        try:
            remark = case()
            if remark:
                self.remarks[remark] = self.remarks.get(remark, 0) + 1
            print(f"ok   {name}" + (f" ({remark})" if remark else ""), flush=True)
        except Exception as error:
            self.failed.append(name)
            self.ambiguous += isinstance(error, Ambiguous)
            why = str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
            print(f"FAIL {name}: {' '.join(why.split())[:700]}", flush=True)
        finally:
            signal.alarm(0)
