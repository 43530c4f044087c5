"""Sends the HTTP/2 cases and the floods, and looks at what comes back and at what the upstream gets."""

from check_requests import Requests
from floods import FLOODS
from frames import DATA, END_STREAM, Caller2, frame, headers, probe, request
from http2_cases import CASES
from kit import equal, expect
from request_cases import Broken, Either, Passed, Refused


class Http2(Requests):
    def checks(self):
        cases = [(f"http2, {case.name}", lambda case=case: self.watched(case)) for case in CASES]
        return cases + [(f"http2, {name}", lambda flood=flood: flood(self.lab, self.recorder)) for name, flood in FLOODS]

    def run(self, case):
        wanted, remark = case.expected, None
        with Caller2(self.lab.port) as caller:
            expect(caller.answers(b"ready ??"), "no handshake")
            data, trailers = case.data or [], case.trailers
            out = [headers(case.fields, 1, not data and not trailers)]
            for index, piece in enumerate(data):
                last = index == len(data) - 1 and not trailers
                out.append(frame(DATA, piece, END_STREAM if last else 0, 1))
            if trailers:
                out.append(headers(trailers, 1))
            caller.push(b"".join(out))
            stream = caller.stream(1)
            caller.wait(lambda: stream.ended or caller.ended)
            answered = stream.status is not None and stream.reset in (None, 0)
            if isinstance(wanted, Either):
                fits = answered and stream.status == 200
                wanted, remark = (wanted.passed[0], "passed on in one spelling") if fits else (Refused(()), "refused")
            how = f"status {stream.status}, reset {stream.reset}, connection {caller.ending()}"
            seen = []
            if isinstance(wanted, Passed):
                expect(answered and stream.status == 200 and stream.ended, f"not answered: {how}; upstream {self.recorder.seen()}")
                if not self.lab.peer:
                    equal("the answer is to", [value for name, value in stream.fields if name == b"x-target"], [wanted.line.split()[1]])
                seen.append(wanted)
            else:
                over = caller.ended or stream.reset is not None or stream.status and stream.status >= 400
                expect(over and not (answered and stream.status < 400), f"not refused: {how}; upstream {self.recorder.seen()}")
                seen += [wanted] if isinstance(wanted, Broken) else []
            if not caller.ended:
                caller.push(headers(request(path=b"/after", authority=b"after.test"), 3))
                after = caller.stream(3)
                caller.wait(lambda: after.ended or caller.ended)
                expect(after.status == 200, f"the next request: status {after.status}, reset {after.reset}, connection {caller.ending()}; before: {how}")
                seen.append(Passed(b"GET /after", host=b"after.test", via=b"2.0"))
        self.upstream(case, seen)
        if isinstance(wanted, (Refused, Broken)):
            after, _ = probe(self.lab.port)
            equal("the next answer", after.status, 200)
        return remark
