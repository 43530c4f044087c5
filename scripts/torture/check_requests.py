"""Sends the request cases, and looks at what the caller gets and at every byte that the upstream gets."""

import re

from caller import ENDED, RESET, Caller
from kit import Ambiguous, Failed, equal, expect
from readers import Garbled, Partial, disagreement, short, strict_request
from recorder import Recorder
from request_cases import CASES, Broken, Either, Passed, Refused

AFTER = b"GET /after HTTP/1.1\r\nHost: after.test\r\n\r\n"
# What a request is called if its caller does not say.
CALLED = [re.compile(rb"traceparent: 00-[0-9a-f]{32}-[0-9a-f]{16}-01"), re.compile(rb"x-request-id: [0-9a-f]{32}")]

# What a process is called in Via.
PROCESS = re.compile(rb"sluice-[0-9a-f]{8}$")
OURS = {b"via", b"traceparent", b"x-request-id", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"connection", b"te"}


class Requests:
    def __init__(self, make_lab):
        self.recorder = Recorder()
        self.lab = make_lab(self.recorder.port)

    def __enter__(self):
        self.lab.__enter__()
        return self

    def __exit__(self, *_):
        self.lab.__exit__()
        self.recorder.stop()

    def checks(self):
        return [(f"request, {case.name}", lambda case=case: self.watched(case)) for case in CASES]

    def watched(self, case):
        """Runs a case. Whatever else is wrong, what the upstream cannot read in one way only is worse."""
        self.recorder.mark()
        try:
            return self.run(case)
        except Failed:
            for raw in self.recorder.seen():
                if why := disagreement(raw):
                    raise Ambiguous(f"{why}; sent {short(raw)}") from None
            raise

    def run(self, case):
        """Returns a remark, or None."""
        expected, remark = case.expected, None
        with Caller(self.lab.port) as caller:
            caller.send(*case.raw, pause=0.06 if len(case.raw) < 4 else 0.002)
            if case.half_closes and not isinstance(expected[0], Either):
                caller.say_no_more()  # whoever may get an answer waits for it: who hangs up may not
            ends, seen, queue = False, [], list(expected)
            while queue:
                wanted = queue.pop(0)
                answer = caller.answer(self.method(wanted))
                if isinstance(wanted, Either):
                    if answer and answer.status in (400, 417):
                        begun = wanted.passed[0].chunked  # the head may have been passed on before
                        wanted, remark = (Broken if begun else Refused)((400, 417)), "refused"
                        queue = []
                    else:
                        wanted, remark = wanted.passed[0], "passed on in one spelling"
                        queue = list(expected[0].passed[1:]) + queue
                ends = self.judge(wanted, answer, seen)
                if ends:
                    break
            if ends:
                how = caller.ends()
                raw = self.recorder.seen()
                expect(how in (ENDED, RESET), f"the connection does not end: {how or short(caller.buffer)}; upstream {short(raw)}")
            elif case.half_closes:
                pass
            else:
                caller.send(AFTER)
                answer = caller.answer()
                expect(answer, f"no answer to the next request ({caller.end})")
                equal("the next answer", (answer.status, answer.all(b"x-target")), (200, [b"/after"]))
                seen.append(Passed(b"GET /after", host=b"after.test"))
        self.upstream(case, seen)
        return remark

    def method(self, wanted):
        passed = wanted.passed[0] if isinstance(wanted, Either) else wanted
        return passed.line.split()[0] if isinstance(passed, Passed) else b"GET"

    def judge(self, wanted, answer, seen):
        """Whether the answer is right; says whether the connection must end. Notes what the upstream must see."""
        status = answer.status if answer else None
        if isinstance(wanted, Passed):
            expect(answer, f"no answer; upstream {short(self.recorder.seen())}")
            equal("the status", status, 200)
            target = wanted.line.split()[1]
            if not self.lab.peer:
                equal("the answer is to", answer.all(b"x-target"), [target[:2000]])
                equal("interim answers", tuple(code for code, _ in answer.interim), wanted.interim)
            seen.append(wanted)
            return wanted.ends
        statuses = wanted.statuses
        if self.lab.peer:
            expect(status is None or 400 <= status < 600, f"the status is {status}; upstream {short(self.recorder.seen())}")
        else:
            expect(status in statuses, f"the status is {status}, not {' or '.join(map(str, statuses))}; "
                                       f"upstream {short(self.recorder.seen())}")
        if isinstance(wanted, Broken):
            seen.append(wanted)
            return True
        return not wanted.keeps

    def upstream(self, case, wanted):
        raw = self.recorder.seen()
        complete = []
        for connection in raw:
            why = disagreement(connection)
            if why:
                raise Ambiguous(f"{why}; sent {short(connection)}")
            at = 0
            while at < len(connection):
                try:
                    request, length = strict_request(connection[at:])
                except (Partial, Garbled):
                    expect(any(isinstance(each, Broken) for each in wanted), f"half a request upstream: {short(connection[at:])}")
                    break
                complete.append(request)
                at += length
        at_most = [each.at_most for each in wanted if isinstance(each, Broken) and each.at_most]
        wanted = [each for each in wanted if isinstance(each, Passed)]
        if len(complete) == len(wanted) + len(at_most):
            wanted = at_most + wanted
        if len(complete) != len(wanted):
            raise Failed(f"the upstream saw {len(complete)} whole requests, not {len(wanted)}: {short(raw)}")
        if len(raw) > 1:  # several connections: which came first is not known
            complete.sort()
            wanted.sort(key=lambda each: each.line)
        for request, each in zip(complete, wanted):
            self.compare(request, each)

    def compare(self, request, wanted):
        equal("the body", request.body, wanted.body)
        if self.lab.peer:
            return self.compare_loosely(request, wanted)
        equal("the request line", request.line, wanted.line + b" HTTP/1.1")
        fields = [b"host: " + wanted.host, *wanted.fields, b"x-forwarded-for: 127.0.0.1", b"via: " + wanted.via + b" sluice",
                  b"x-forwarded-proto: http", b"x-forwarded-host: " + wanted.host]
        if wanted.chunked:
            fields.append(b"transfer-encoding: chunked")
        elif wanted.length is not None:
            fields.append(b"content-length: %d" % wanted.length)
        lines = sorted(name + b": " + PROCESS.sub(b"sluice", value) for name, value in request.fields)
        for own in CALLED:
            # What a request is called begins here, once, unless the case says it.
            if not any(field.startswith(own.pattern.split(b" ")[0]) for field in fields):
                begun = [line for line in lines if own.fullmatch(line)]
                equal(f"fields like {own.pattern}", len(begun), 1)
                lines.remove(begun[0])
        fields.sort()
        if lines != fields:
            more, less = [line for line in lines if line not in fields], [line for line in fields if line not in lines]
            raise Failed(f"the upstream's head has {short(more)} and lacks {short(less)}")
        equal("the trailers", [name + b": " + value for name, value in request.trailers], list(wanted.trailers))

    def compare_loosely(self, request, wanted):
        """Peers write heads in their own way; what matters is that it is this request, and which fields it has."""
        equal("the method", request.line.split()[0], wanted.line.split()[0])
        names = {line.split(b":")[0] for line in wanted.fields}
        extra = {name.lower() for name, _ in request.fields} - names - OURS - {b"host", b"content-length", b"transfer-encoding"}
        expect(not extra & {b"keep-alive", b"proxy-connection", b"upgrade", b"http2-settings", b"x-hop", b"x-hip"},
               f"fields that go no further went further: {extra}")
        expect(not {name.lower() for name, _ in request.trailers} & {b"content-length", b"transfer-encoding", b"host"},
               f"trailers {request.trailers}")
