"""Asks for the answer cases, and looks at what the caller gets and at what the next caller gets."""

import time

from answer_cases import CASES, Bad, Cut
from caller import ENDED, SILENT, Caller, fetch
from kit import Failed, equal, expect
from readers import short
from scripted import Scripted

FRAMING = {b"content-length", b"transfer-encoding"}


class Answers:
    def __init__(self, make_lab):
        self.upstream = Scripted()
        self.lab = make_lab(self.upstream.port)
        self.count = 0

    def __enter__(self):
        self.lab.__enter__()
        return self

    def __exit__(self, *_):
        self.lab.__exit__()
        self.upstream.stop()

    def checks(self):
        return [(f"answer, {case.name}", lambda case=case: self.run(case)) for case in CASES]

    def run(self, case):
        self.count += 1
        self.upstream.begin(case)
        if case.pooled:
            equal("the answer before", fetch(self.lab.port, b"/before").body, b"plain /before")
        with Caller(self.lab.port, seconds=8) as caller:
            length = b"" if b"Content-Length" in case.fields or not case.body else b"Content-Length: %d\r\n" % len(case.body)
            caller.send(case.method + b" /odd " + case.version + b"\r\nHost: a.test\r\n" + case.fields + length + b"\r\n" + case.body)
            began = time.monotonic()
            if "without an end" in case.name:
                self.others_are_answered()
            answer = caller.answer(case.method)
            took = time.monotonic() - began
            expect(took < 5, f"the answer took {took:.1f} s")
            remark = self.judge(case, answer, caller)
            time.sleep(0.06 if 0.03 in case.script or case.greeting else 0.002)
            self.next(case, caller, answer)
        asked = sum(target == b"/odd" for _, target in self.upstream.asked)
        if not self.lab.peer:
            equal("how often the upstream was asked", asked, case.asked)
        return remark

    def others_are_answered(self):
        time.sleep(0.3)
        began = time.monotonic()
        answer = fetch(self.lab.port, b"/other")
        expect(answer, "meanwhile another got no answer for 4 s")
        equal("another's answer", answer.body, b"plain /other")
        expect(time.monotonic() - began < 1, "another had to wait")

    def judge(self, case, answer, caller):
        """Whether one of the choices was made; says which, if there are some."""
        whys = []
        for choice in case.expected:
            try:
                self.fits(choice, case, answer, caller)
                return None if len(case.expected) == 1 else f"{type(choice).__name__.lower()} answer"
            except Failed as error:
                whys.append(str(error))
        raise Failed("; or ".join(whys))

    def fits(self, choice, case, answer, caller):
        if isinstance(choice, Cut):
            if answer is None or answer.status == 502:  # no head was sent before it was known
                return
            equal("the status", answer.status, choice.status)
            expect(not answer.whole, f"a whole answer: {short(answer)}")
            expect(caller.end != SILENT, "the connection stays open behind a part of an answer")
            if case.version == b"HTTP/1.0":
                expect(caller.end != ENDED, f"to this caller it is whole: {short(answer)}")
            return
        expect(answer, f"no answer ({caller.end})")
        expect(answer.whole, f"half an answer: {short(answer)}")
        if isinstance(choice, Bad):
            if self.lab.peer:
                return expect(answer.status in (502, 504), f"the status is {answer.status}: {short(answer)}")
            expect(answer.status in choice.statuses, f"the status is {answer.status}, not {choice.statuses}: {short(answer)}")
            return equal("the body", answer.body, b"")
        equal("the status", answer.status, choice.status)
        equal("the body", answer.body, choice.body)
        if self.lab.peer:
            return
        equal("interim answers", tuple(status for status, _ in answer.interim), choice.interim)
        for _, fields in answer.interim:
            names = {name.lower() for name, _ in fields}
            expect(not names & {b"connection", b"x-hop", *FRAMING}, f"an interim answer with {names}")
        skipped = {b"date"} if choice.fields and b"content-length" in choice.fields[0] else {b"date", *FRAMING}
        if case.version == b"HTTP/1.0" or case.body and case.fields:
            skipped = skipped | {b"connection"}
        fields = [name + b": " + value for name, value in answer.fields if name not in skipped]
        equal("the fields", sorted(fields), sorted(choice.fields))
        equal("the trailers", [name + b": " + value for name, value in answer.trailers], list(choice.trailers))

    def next(self, case, caller, answer):
        """The next request gets its own answer, whichever way it goes."""
        target = b"/next/%d" % self.count
        if answer and answer.whole and answer.status != 101 and not caller.end \
                and b"close" not in answer.all(b"connection") and case.version == b"HTTP/1.1" \
                and b"Content-Length" not in case.fields:
            expect(not caller.buffer, f"unasked bytes for the caller: {short(caller.buffer)}")
            caller.send(b"GET " + target + b" HTTP/1.1\r\nHost: a.test\r\n\r\n")
            following = caller.answer()
        else:
            following = fetch(self.lab.port, target)
        expect(following, "no answer to the next request")
        equal("the next answer", (following.status, following.body), (200, b"plain " + target))
        if self.lab.peer or case.reuses is None:
            return
        odd = [number for number, each in self.upstream.asked if each == b"/odd"]
        after = [number for number, each in self.upstream.asked if each == target]
        equal("the next request goes over the same connection", after[-1:] == odd[-1:], case.reuses)
